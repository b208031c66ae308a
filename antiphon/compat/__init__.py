"""Other APIs as translations of the Responses API: requests to ours, responses and events to
theirs."""

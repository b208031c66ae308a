"""Other APIs, implemented as translations of the Responses API.

Their requests become Responses requests. Responses and events become their answers.
"""

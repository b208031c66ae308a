"""Other APIs, such as Chat Completions, that the server offers by translation.

A request of such an API becomes one or more requests of the Responses API. The resulting responses
and events become the answer of that API.
"""

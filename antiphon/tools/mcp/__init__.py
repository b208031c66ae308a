"""Remote MCP servers: their tools are listed, offered to models and called, by the official SDK.

``servers`` is the provider; ``link`` reaches a server, ``pool`` keeps sessions, ``asking`` reads
what a request wants, ``results`` says what came of a call.
"""

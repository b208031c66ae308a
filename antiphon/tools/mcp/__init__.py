"""Remote MCP servers: list their tools, offer them to the model, call them with the official SDK.

``provider`` is the tool provider; ``transport`` connects to a server, ``sessions`` pools
connections, ``request`` reads the fields of a request, ``results`` reads results and errors.
"""

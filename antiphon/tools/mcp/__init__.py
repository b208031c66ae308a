"""Remote MCP servers: list their tools, offer these tools to the model, and call them with the
official MCP SDK.

``provider`` contains the tool provider. ``transport`` connects to a server, and ``sessions`` keeps
open connections for reuse. ``request`` reads the fields of a request. ``results`` reads results and
errors.
"""

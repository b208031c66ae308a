"""A server of one tool, over stdio, as the Model Context Protocol has it: it adds."""

import json
import sys

TOOL = {
    "name": "add",
    "description": "Adds two numbers.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    },
}


def answer(request):
    method, params = request["method"], request.get("params", {})
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "calc", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        total = params["arguments"]["a"] + params["arguments"]["b"]
        with open("added.txt", "w") as file:
            file.write(str(total))
        return {"content": [{"type": "text", "text": str(total)}]}
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        said = {"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

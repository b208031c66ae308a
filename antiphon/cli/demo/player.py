"""The client of the demo: sends a fixed series of requests, called the tour, and prints the
server's answers."""

from __future__ import annotations

import json
import secrets
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping

from antiphon.errors import SetupError

from ..client import Json, RequestFailed, Server
from .script import FILE, MODEL, QUESTION, tools

_TIMEOUT_S = 60
#: Maximum number of polls until the file is indexed, and seconds before each poll.
_POLLS, _PAUSE_S = 300, 0.1

Print = Callable[[str], None]


def play(url: str, ready: Collection[str], show: Print) -> None:
    """Send the demo's requests to the server at ``url``, and print the requests and the answers.
    ``ready``: types of the tools that work on this server.

    Raises ``SetupError`` if a request fails.
    """
    try:
        server = Server(url)
        store_id = _upload(server, url, show) if "file_search" in ready else ""
        body: dict[str, object] = {
            "model": MODEL,
            "input": QUESTION,
            "tools": tools(ready, store_id),
        }
        body["include"] = ["code_interpreter_call.outputs"] * ("code_interpreter" in ready)
        while True:
            show(f"\nPOST {url}/v1/responses\n  {json.dumps({**body, 'stream': True})}")
            response = _show_response(server.events(body), show)
            approvals = [
                {
                    "type": "mcp_approval_response",
                    "approval_request_id": item["id"],
                    "approve": True,
                }
                for item in response.get("output", ())
                if item["type"] == "mcp_approval_request"
            ]
            if not approvals:
                return
            show("  The response ended and waits for you. This tour approves.")
            body = {**body, "previous_response_id": response["id"], "input": approvals}
    except (RequestFailed, OSError) as error:
        raise SetupError(f"the tour stopped: {error}") from None


def _show_response(events: Iterator[Json], show: Print) -> Json:
    """Print each item of a streamed response, and return the final response."""
    response: Json = {}
    for event in events:
        if event["type"] == "response.output_item.done":
            for line in _describe(event["item"]):
                show(f"  {line}")
        elif event["type"] == "error":
            raise RequestFailed(event["message"])
        response = event.get("response", response)
    return response


def _describe(item: Json) -> Iterator[str]:
    """Yield a few lines that describe an item of the response's output."""
    kind = item["type"]
    describe = _DESCRIPTIONS.get(kind)
    yield f"{kind:<22} {describe(item) if describe is not None else ''}".rstrip()
    if kind == "code_interpreter_call":
        for output in item.get("outputs") or ():
            yield f"{'':<22} → {str(output.get('logs', output['type'])).strip()}"
    if kind == "message":
        for annotation in item["content"][0]["annotations"]:
            source = annotation.get("url") or annotation.get("filename")
            yield f"{'':<22} {annotation['type']}: {source}"


#: Type of an item → a short text about it.
_DESCRIPTIONS: Mapping[str, Callable[[Json], str]] = {
    "reasoning": lambda item: item["content"][0]["text"].strip(),
    "web_search_call": lambda item: json.dumps(item["action"]),
    "file_search_call": lambda item: json.dumps(item["queries"]),
    "code_interpreter_call": lambda item: " ⏎ ".join(item["code"].splitlines()),
    "mcp_list_tools": lambda item: ", ".join(tool["name"] for tool in item["tools"]),
    "mcp_approval_request": lambda item: f"{item['name']} {item['arguments']}",
    "mcp_call": lambda item: f"{item['name']} → {item['output']}",
    "message": lambda item: item["content"][0]["text"],
}


def _upload(server: Server, url: str, show: Print) -> str:
    """Upload the demo's file and add it to a new vector store. Waits until the file is indexed.
    Returns the id of the vector store."""
    name, content = FILE
    boundary = secrets.token_hex(16)
    fields = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    )
    form = fields.encode() + content + f"\r\n--{boundary}--\r\n".encode()
    kind = f"multipart/form-data; boundary={boundary}"
    request = urllib.request.Request(f"{url}/v1/files", form, {"content-type": kind})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        file_id = json.load(answer)["id"]
    show(f"POST {url}/v1/files  {name} → {file_id}")
    store = server.post("/v1/vector_stores", {"name": "tour", "file_ids": [file_id]})
    show(f"POST {url}/v1/vector_stores → {store['id']}")
    for _ in range(_POLLS):
        if store["file_counts"]["in_progress"] == 0:
            break
        time.sleep(_PAUSE_S)
        store = server.get(f"/v1/vector_stores/{store['id']}")
    return str(store["id"])

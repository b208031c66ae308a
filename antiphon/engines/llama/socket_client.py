"""Send requests with images to llama.cpp's HTTP server over a private socket. The functions of
llama.cpp's Python binding do not accept images.

The socket file is in a folder that only this user may enter, and an API key is required.
``LlamaSocket`` has the same interface as the binding's server, so the engine uses both in the same
way.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from antiphon.errors import BackendError

__all__ = ["LlamaSocket"]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.encode
_FRAME = b"data: "


class _Connection(HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("llama")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


class LlamaSocket:
    """llama.cpp's server in this process, called over the Unix socket ``path``. ``close`` stops the
    server and removes ``folder``, which contains the socket file. ``key``: the API key."""

    def __init__(self, server: Any, folder: TemporaryDirectory[str], path: str, key: str) -> None:
        self._server = server
        self._folder = folder
        self._path = path
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        #: The image marker in a prompt's text. Each llama.cpp process chooses a random marker.
        self.marker = str(self._properties()["media_marker"])

    def handle_completions(self, request: bytes, read: Callable[[bytes], bool]) -> None:
        """Run one generation. ``request``: the body of the request, as JSON.

        ``read``: a function that is called with each event, in the format of the Python binding. If
        it returns True, the generation is aborted.
        """
        connection = _Connection(self._path)
        try:
            connection.request("POST", "/completion", request, self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                read(answer.read())
                return
            self._read_events(answer, read)
        finally:
            connection.close()

    def _read_events(self, answer: HTTPResponse, read: Callable[[bytes], bool]) -> None:
        for line in answer:
            if line.startswith(_FRAME) and read(_binding_event(line[len(_FRAME) :])):
                return

    def prompt_tokens(self, prompt: dict[str, Any]) -> int:
        """Return the number of tokens of a prompt with images.

        Raises ``BackendError`` if llama.cpp cannot read the prompt.
        """
        total: list[int] = []
        errors: list[str] = []

        def read(event: bytes) -> bool:
            decoded = _decode(event)
            if "error" in decoded:
                errors.append(str(decoded["error"]["message"]))
            else:
                total.append(decoded["__verbose"]["prompt_progress"]["total"])
            return True  # the count is reported before anything is computed

        request = {"prompt": prompt, "max_tokens": 1, "stream": True, "return_progress": True}
        self.handle_completions(_encode(request), read)
        if errors or not total:
            raise BackendError(errors[0] if errors else "The engine returned nothing.")
        return total[0]

    def _properties(self) -> dict[str, Any]:
        connection = _Connection(self._path)
        try:
            connection.request("GET", "/props", headers=self._headers)
            properties: dict[str, Any] = _decode(connection.getresponse().read())
            return properties
        finally:
            connection.close()

    def close(self) -> None:
        """Stop llama.cpp's server in this process, free the model, and remove the socket file."""
        self._server = None
        self._folder.cleanup()


def _binding_event(line: bytes) -> bytes:
    """Convert an event of llama.cpp's HTTP server to the format of the Python binding's events."""
    event = _decode(line)
    if "error" in event:
        return line
    choice: dict[str, Any] = {"finish_reason": None}
    if event.get("stop"):
        choice["finish_reason"] = "length" if event.get("stop_type") == "limit" else "stop"
    if (probabilities := event.get("completion_probabilities")) is not None:
        choice["logprobs"] = {"content": probabilities}
    return _encode({"choices": [choice], "__verbose": event})

"""llama.cpp's server by its own interface, for what the binding's calls do not offer: images.

A socket file in a folder that only this user may enter, and a key besides. It is spoken to like the
binding, so that nobody else need know which of the two it is.
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
    """To a socket file."""

    def __init__(self, path: str) -> None:
        super().__init__("llama")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


class LlamaSocket:
    """A server that runs, which it owns with its ``folder``. ``path``: its socket file there."""

    def __init__(self, server: Any, folder: TemporaryDirectory[str], path: str, key: str) -> None:
        self._server = server
        self._folder = folder
        self._path = path
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        #: What stands for an image in a prompt's text: drawn by llama.cpp, told to nobody.
        self.marker = str(self._properties()["media_marker"])

    def handle_completions(self, request: bytes, read: Callable[[bytes], bool]) -> None:
        """Generate. ``read`` is given each event as the binding gives it; True ends it."""
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
        """Tokens of a prompt with images. Raises ``BackendError`` for one that llama.cpp cannot
        read."""
        total: list[int] = []
        failed: list[str] = []

        def read(event: bytes) -> bool:
            found = _decode(event)
            if "error" in found:
                failed.append(str(found["error"]["message"]))
            else:
                total.append(found["__verbose"]["prompt_progress"]["total"])
            return True  # it is told before anything is computed

        asked = {"prompt": prompt, "max_tokens": 1, "stream": True, "return_progress": True}
        self.handle_completions(_encode(asked), read)
        if failed or not total:
            raise BackendError(failed[0] if failed else "The engine said nothing.")
        return total[0]

    def _properties(self) -> dict[str, Any]:
        connection = _Connection(self._path)
        try:
            connection.request("GET", "/props", headers=self._headers)
            found: dict[str, Any] = _decode(connection.getresponse().read())
            return found
        finally:
            connection.close()

    def close(self) -> None:
        """Free the model."""
        self._server = None
        self._folder.cleanup()


def _binding_event(line: bytes) -> bytes:
    """An event as the binding's call would give it."""
    event = _decode(line)
    if "error" in event:
        return line
    choice: dict[str, Any] = {"finish_reason": None}
    if event.get("stop"):
        choice["finish_reason"] = "length" if event.get("stop_type") == "limit" else "stop"
    if (known := event.get("completion_probabilities")) is not None:
        choice["logprobs"] = {"content": known}
    return _encode({"choices": [choice], "__verbose": event})

"""Terminal chat client for a running server.

It uses Python's own HTTP client, so that chatting needs no dependency beyond the server's."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from antiphon.errors import AntiphonError, SetupError

__all__ = ["RequestFailed", "Server", "chat", "sse"]

_CONNECT_S = 10

_HELP = "/new starts a new conversation · /quit or Ctrl-D quits · Ctrl-C stops an answer"

#: Event → style of its delta. Other events print no delta.
_STYLES: Mapping[str, str | None] = {
    "response.output_text.delta": None,
    "response.refusal.delta": None,
    "response.reasoning_text.delta": "dim",
    "response.reasoning.delta": "dim",
    "response.reasoning_summary_text.delta": "dim",
}

#: Control characters are removed: they would let a model control the terminal.
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))


class RequestFailed(AntiphonError):
    """The server returned an error or did not answer; the message says which."""


class Server:
    """HTTP client for one server; the URL may end in ``/v1``. Raises ``SetupError`` for an invalid
    URL."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in kinds or not parts.hostname or port == -1:
            raise SetupError(f"{url!r} is not a server URL: write http://HOST:PORT")
        self._kind = kinds[parts.scheme]
        self._host, self._port = parts.hostname, port
        self._base = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self.url = f"{parts.scheme}://{parts.netloc}{self._base}"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def models(self) -> list[str]:
        """Return the names of the served models. Raises ``RequestFailed``."""
        with self._request("GET", "/models") as answer:
            return [entry["id"] for entry in json.load(answer)["data"]]

    def events(self, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Create a response and yield its events. Raises ``RequestFailed``.

        Closing the iterator disconnects, which cancels the response."""
        with self._request("POST", "/responses", {**body, "stream": True}) as answer:
            yield from sse(answer)

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._kind(self._host, self._port, timeout=_CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)  # long prompts take time; Ctrl-C ends any wait
            headers = {**self._headers, "content-type": "application/json"}
            connection.request(
                method, self._base + path, json.dumps(body) if body else None, headers
            )
            answer = connection.getresponse()
            if answer.status != 200:
                raise RequestFailed(_reason(answer))
            yield answer
        except ConnectionRefusedError:
            raise RequestFailed(
                f"no server answers at {self.url}; start one with: antiphon serve"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RequestFailed(f"{self.url}: {error or type(error).__name__}") from None
        finally:
            connection.close()


def _reason(answer: http.client.HTTPResponse) -> str:
    try:
        return str(json.load(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {answer.status} {answer.reason}"


def sse(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Parse an event stream up to ``[DONE]``. Expects one ``data`` line an event, as this server
    sends."""
    for line in lines:
        field, _, value = line.strip().partition(b":")
        if field == b"data":
            if value.strip() == b"[DONE]":
                return
            yield json.loads(value)


class _Conversation:
    """A conversation. The server stores it; the client keeps only the id of the last response."""

    def __init__(self, server: Server, model: str | None, console: Console) -> None:
        self._server = server
        self._model = model
        self._console = console
        self._previous: str | None = None

    def send(self, text: str) -> None:
        """Send a message and print the answer as it streams."""
        body = {"input": text, "model": self._model, "previous_response_id": self._previous}
        stream = self._server.events({key: value for key, value in body.items() if value})
        try:
            with contextlib.closing(stream):
                for event in stream:
                    self._print_event(event)
        except KeyboardInterrupt:
            self._print_note(
                "\n(stopped; this message and its answer are not part of the conversation)"
            )
        except RequestFailed as error:
            self._print_note(f"\n{error}", "red")
        else:
            self._console.print()

    def _print_event(self, event: Mapping[str, Any]) -> None:
        kind = event["type"]
        if kind in _STYLES:
            text = event["delta"].translate(_CONTROLS)
            self._console.print(text, end="", style=_STYLES[kind], soft_wrap=True)
        elif kind == "response.output_item.done" and event["item"]["type"] == "reasoning":
            self._console.print("\n")
        elif kind in ("response.completed", "response.incomplete"):
            response = event["response"]
            self._previous = response["id"]
            if response["status"] == "incomplete":
                self._print_note(f"\n(incomplete: {response['incomplete_details']['reason']})")
        elif kind == "response.failed":
            self._print_note(f"\n{event['response']['error']['message']}", "red")

    def new(self) -> None:
        """Start a new conversation."""
        self._previous = None
        self._print_note("(new conversation)")

    def help(self) -> None:
        """Print the commands."""
        self._print_note(_HELP)

    def unknown(self) -> None:
        """Reject an unknown command instead of sending it as a message."""
        self._print_note(f"(unknown command) {_HELP}")

    def _print_note(self, text: str, style: str = "dim") -> None:
        self._console.print(text, style=style, soft_wrap=True)


def chat(url: str, *, model: str | None = None, key: str | None = None) -> None:
    """Chat until ``/quit`` or the end of input.

    Raises ``SetupError`` if the server does not answer, rejects the key or does not serve the
    model."""
    server = Server(url, key)
    try:
        names = server.models()
    except RequestFailed as error:
        raise SetupError(str(error)) from None
    if model is not None and model not in names:
        raise SetupError(f"{server.url} does not serve {model!r}; it serves {', '.join(names)}")
    console = Console(highlight=False, markup=False, emoji=False)
    conversation = _Conversation(server, model, console)
    commands: Mapping[str, Callable[[], None]] = {
        "/new": conversation.new,
        "/help": conversation.help,
    }
    console.print(f"{server.url}\n{_HELP}", style="dim", soft_wrap=True)
    for text in _input_lines(conversation.help):
        if text == "/quit":
            return
        if text.startswith("/"):
            commands.get(text, conversation.unknown)()
        else:
            conversation.send(text)


def _input_lines(interrupted: Callable[[], None]) -> Iterator[str]:
    """Yield the lines a user types until end of input. ``interrupted`` is called on Ctrl-C."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives ``input`` a history and line editing
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            text = input(prompt).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            interrupted()
            continue
        if text:
            yield text

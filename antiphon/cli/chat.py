"""The terminal client: talks to a running server over HTTP, as any client would.

Python's own HTTP client suffices, so that chatting needs nothing the server does not. It knows
nothing of models or of how the server works.
"""

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

__all__ = ["Refused", "Server", "chat", "sse"]

_CONNECT_S = 10

_HELP = "/new starts over · /quit or Ctrl-D leaves · Ctrl-C stops an answer"

#: Event → how its delta looks. Whatever else comes is not for the eye.
_STYLES: Mapping[str, str | None] = {
    "response.output_text.delta": None,
    "response.refusal.delta": None,
    "response.reasoning_text.delta": "dim",
    "response.reasoning.delta": "dim",
    "response.reasoning_summary_text.delta": "dim",
}

#: Control characters would let a model command the terminal.
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))


class Refused(AntiphonError):
    """The server answered with an error, or not at all; the message is what it said."""


class Server:
    """A server by its URL, with or without ``/v1``. Raises ``SetupError`` for what is no URL."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in kinds or not parts.hostname or port == -1:
            raise SetupError(f"{url!r} is no address of a server: write http://HOST:PORT")
        self._kind = kinds[parts.scheme]
        self._host, self._port = parts.hostname, port
        self._base = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self.url = f"{parts.scheme}://{parts.netloc}{self._base}"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def models(self) -> list[str]:
        """The names it serves. Raises ``Refused``."""
        with self._ask("GET", "/models") as answer:
            return [entry["id"] for entry in json.load(answer)["data"]]

    def events(self, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """A response, event by event. Closing the iterator hangs up, which stops the model. Raises
        ``Refused``."""
        with self._ask("POST", "/responses", {**body, "stream": True}) as answer:
            yield from sse(answer)

    @contextlib.contextmanager
    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._kind(self._host, self._port, timeout=_CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)  # a long prompt takes its time; Ctrl-C ends any wait
            headers = {**self._headers, "content-type": "application/json"}
            connection.request(
                method, self._base + path, json.dumps(body) if body else None, headers
            )
            answer = connection.getresponse()
            if answer.status != 200:
                raise Refused(_reason(answer))
            yield answer
        except ConnectionRefusedError:
            raise Refused(
                f"no server answers at {self.url}; start one with: antiphon serve"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Refused(f"{self.url}: {error or type(error).__name__}") from None
        finally:
            connection.close()


def _reason(answer: http.client.HTTPResponse) -> str:
    try:
        return str(json.load(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {answer.status} {answer.reason}"


def sse(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The events in the lines of an event stream, up to ``[DONE]``. One ``data`` line each, as this
    server writes them."""
    for line in lines:
        field, _, value = line.strip().partition(b":")
        if field == b"data":
            if value.strip() == b"[DONE]":
                return
            yield json.loads(value)


class _Chat:
    """One conversation after another. The server keeps them; here is only the last one's id."""

    def __init__(self, server: Server, model: str | None, console: Console) -> None:
        self._server = server
        self._model = model
        self._console = console
        self._previous: str | None = None

    def say(self, text: str) -> None:
        """Send a message and show the answer as it comes."""
        body = {"input": text, "model": self._model, "previous_response_id": self._previous}
        stream = self._server.events({key: value for key, value in body.items() if value})
        try:
            with contextlib.closing(stream):
                for event in stream:
                    self._show(event)
        except KeyboardInterrupt:
            self._note("\n(stopped; this exchange is forgotten)")
        except Refused as error:
            self._note(f"\n{error}", "red")
        else:
            self._console.print()

    def _show(self, event: Mapping[str, Any]) -> None:
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
                self._note(f"\n(cut: {response['incomplete_details']['reason']})")
        elif kind == "response.failed":
            self._note(f"\n{event['response']['error']['message']}", "red")

    def new(self) -> None:
        """Start over."""
        self._previous = None
        self._note("(a new conversation)")

    def help(self) -> None:
        """What can be typed."""
        self._note(_HELP)

    def unknown(self) -> None:
        """A command there is not: not a message, lest a slip be sent."""
        self._note(f"(no such command) {_HELP}")

    def _note(self, text: str, style: str = "dim") -> None:
        self._console.print(text, style=style, soft_wrap=True)


def chat(url: str, *, model: str | None = None, key: str | None = None) -> None:
    """Talk until ``/quit`` or the end of the input. Raises ``SetupError`` if no server answers, it
    wants another key, or it has no such model."""
    server = Server(url, key)
    try:
        names = server.models()
    except Refused as error:
        raise SetupError(str(error)) from None
    if model is not None and model not in names:
        raise SetupError(f"{server.url} has no model {model!r}; it has {', '.join(names)}")
    console = Console(highlight=False, markup=False, emoji=False)
    talk = _Chat(server, model, console)
    commands: Mapping[str, Callable[[], None]] = {"/new": talk.new, "/help": talk.help}
    console.print(f"{server.url}\n{_HELP}", style="dim", soft_wrap=True)
    for text in _typed(talk.help):
        if text == "/quit":
            return
        if text.startswith("/"):
            commands.get(text, talk.unknown)()
        else:
            talk.say(text)


def _typed(interrupted: Callable[[], None]) -> Iterator[str]:
    """The lines a user types, until there are no more. ``interrupted``: Ctrl-C while typing."""
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

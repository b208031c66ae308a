"""HTTP client for the commands that talk to a running server, and a function that finds the address
of this server.

The client uses only Python's standard library. So these commands need no additional packages.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from antiphon.config.folders import state_folder
from antiphon.config.load import LoadedSettings
from antiphon.errors import SetupError
from antiphon.support.installation import antiphon_command

#: An object in an answer of the server.
Json = Mapping[str, Any]

_CONNECT_S = 10
#: File with the address of the server used last.
_LAST_SERVER = "last-server"


class RequestFailed(SetupError):
    """The server returned an error or did not answer. The message says what happened. ``status``:
    the HTTP status of the error; None if there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """HTTP client of the commands for one Antiphon server. ``url``: the address, with or without
    ``/v1``. The constructor raises ``SetupError`` for an invalid URL."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        kinds: dict[str, type[http.client.HTTPConnection]] = {
            "http": http.client.HTTPConnection,
            "https": http.client.HTTPSConnection,
        }
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in kinds or not parts.hostname or port == -1:
            raise SetupError(f"{url!r} is not a server URL: write http://HOST:PORT")
        self._kind = kinds[parts.scheme]
        self._host, self._port = parts.hostname, port
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self.root_url = f"{parts.scheme}://{parts.netloc}{self._root}"
        self.url = f"{self.root_url}/v1"
        self.key = key

    def models(self) -> list[str]:
        """Return the names of the models that answer conversations. If the server is not Antiphon,
        return the names of all its models. Raises ``RequestFailed``."""
        listed = self.get("/v1/models")
        if "models" in listed:
            return [each["slug"] for each in listed["models"]]
        return [each["id"] for each in listed["data"]]

    def events(self, body: Mapping[str, object]) -> Generator[Json, None, None]:
        """Create a response and yield its events. Raises ``RequestFailed``.

        If the caller closes the iterator, the connection is closed, and the server cancels the
        response.
        """
        return self.stream("/v1/responses", {**body, "stream": True})

    def get(self, path: str) -> Any:
        """Return the JSON at ``path``. Raises ``RequestFailed``."""
        with self._request("GET", path) as answer:
            return json.load(answer)

    def download(self, path: str) -> bytes:
        """Return the bytes at ``path``. Raises ``RequestFailed``."""
        with self._request("GET", path) as answer:
            return answer.read()

    def copy(self, path: str, file: IO[bytes]) -> None:
        """Write the bytes at ``path`` to a file. Raises ``RequestFailed``, also if the answer is
        incomplete."""
        with self._request("GET", path) as answer:
            shutil.copyfileobj(answer, file)
            if answer.length:  # http.client reports this only if it reads the whole body at once
                raise http.client.IncompleteRead(b"", answer.length)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Send ``body`` and return the JSON of the answer. Raises ``RequestFailed``."""
        with self._request("POST", path, body) as answer:
            return json.load(answer)

    def delete(self, path: str) -> Any:
        """Delete the resource at ``path`` and return the JSON of the answer. Raises
        ``RequestFailed``."""
        with self._request("DELETE", path) as answer:
            return json.load(answer)

    def stream(
        self, path: str, body: Mapping[str, object] | None = None
    ) -> Generator[Json, None, None]:
        """Send ``body`` and yield the events of the answer. Raises ``RequestFailed``."""
        with self._request("POST", path, body) as answer:
            yield from sse(answer)

    def has_endpoint(self, path: str) -> bool:
        """Return whether the server has an endpoint at ``path``. Raises ``RequestFailed`` if it
        does not answer."""
        try:
            with self._request("OPTIONS", path):
                return True
        except RequestFailed as error:
            if error.status is None:
                raise
            return error.status != 404  # to an endpoint that exists, the method is not allowed

    def is_listening(self) -> bool:
        """Return whether a program accepts connections at the server's address."""
        try:
            port = self._port or self._kind.default_port
            with socket.create_connection((self._host, port), _CONNECT_S):
                return True
        except OSError:
            return False

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._kind(self._host, self._port, timeout=_CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)  # long prompts take time; Ctrl-C ends any wait
            headers = {"content-type": "application/json"}
            if self.key:
                headers["authorization"] = f"Bearer {self.key}"
            connection.request(
                method, self._root + path, json.dumps(body) if body else None, headers
            )
            answer = connection.getresponse()
            if answer.status != 200:
                raise RequestFailed(_reason(answer), answer.status)
            yield answer
        except ConnectionRefusedError:
            raise RequestFailed(
                f"no server answers at {self.url}; start one with: {antiphon_command('serve')}"
            ) from None
        except http.client.IncompleteRead:
            raise RequestFailed(f"{self.url}: the answer is incomplete") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RequestFailed(f"{self.url}: {error or type(error).__name__}") from None
        finally:
            connection.close()


def _reason(answer: http.client.HTTPResponse) -> str:
    try:
        return str(json.load(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {answer.status} {answer.reason}"


def sse(lines: Iterable[bytes]) -> Iterator[Json]:
    """Parse a stream of server-sent events, and yield each event's data. Ends at ``[DONE]``. Each
    event must have exactly one ``data`` line, as Antiphon's events have."""
    for line in lines:
        field, _, value = line.strip().partition(b":")
        if field == b"data":
            if value.strip() == b"[DONE]":
                return
            yield json.loads(value)


# --- which server --------------------------------------------------------------------------------


def find_server(loaded: LoadedSettings) -> Server:
    """Return the server to which a command sends its requests. It is the first match in this list:

    - the server on the port of the flag ``--port``;
    - the server that ``--url`` or the setting ``chat.url`` names;
    - the server at the configured host and port, if a program accepts connections there;
    - the server that was used last, if a program accepts connections there.

    If nothing in the list matches, return the server at the configured host and port.
    """
    from antiphon.bootstrap.addresses import address

    settings = loaded.settings
    if settings.chat.url is not None and loaded.origins["port"] != "--port":
        return Server(settings.chat.url, settings.chat.key)
    configured = Server(address(settings.host, settings.port), settings.chat.key)
    if loaded.origins["port"] == "--port" or configured.is_listening():
        return configured
    try:
        last = Server(_last_server_path().read_text().strip(), settings.chat.key)
    except (OSError, UnicodeDecodeError, SetupError):
        return configured
    return last if last.is_listening() else configured


def remember_server(server: Server) -> None:
    """Store the address of a server, so that later commands find it. Call this after the server has
    answered. The API key is not stored."""
    path = _last_server_path()
    with contextlib.suppress(OSError):  # a read-only home only loses the convenience
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(server.root_url + "\n")
        unfinished.replace(path)


def _last_server_path() -> Path:
    return state_folder() / _LAST_SERVER

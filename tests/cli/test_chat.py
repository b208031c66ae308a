"""The terminal chat client against a fake server, in a pseudo-terminal."""

from __future__ import annotations

import base64
import codecs
import json
import os
import pty
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli.chat import chat
from antiphon.cli.client import RequestFailed, Server, sse
from antiphon.errors import SetupError
from antiphon.support.installation import antiphon_command

WAIT_S = 60

Event = dict[str, Any]


def delta(text: str, kind: str = "output_text") -> Event:
    return {"type": f"response.{kind}.delta", "delta": text}


def ended(id: str, status: str = "completed", **more: Any) -> Event:
    return {"type": f"response.{status}", "response": {"id": id, "status": status, **more}}


class FakeServer(ThreadingHTTPServer):
    """A server that streams the events in ``answers`` for each message.

    An answer that is a number is the status of an error. An answer that ends in None sends nothing
    more until the client disconnects."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.answers: dict[str, list[Event | None] | int] = {}
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.client_disconnected = threading.Event()
        self.status = 200
        #: An answer pauses after the delta "WAIT" until this is set.
        self.go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


def _text(given: Any) -> str:
    """The text of an input, or the type of its first item."""
    if isinstance(given, str):
        return given
    if "content" in given[0]:
        return str(given[0]["content"][-1]["text"])
    return str(given[0]["type"])


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["authorization"])
        if self.path != "/v1/models" or self.server.status != 200:
            return self._json(self.server.status, {"error": {"message": "No models for you."}})
        models = [{"slug": name} for name in ("tiny", "gpt-5.5")]
        self._json(200, {"data": [{"id": "embedder"}, {"id": "tiny"}], "models": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(body)
        answer = self.server.answers[_text(body["input"])]
        if isinstance(answer, int):
            return self._json(answer, {"error": {"message": f"refused with {answer}"}})
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in answer:
            if event is None:
                return self._wait_for_disconnect()
            if event.get("delta") == "WAIT":
                self._chunk(f"data: {json.dumps(event)}\n\n".encode())
                self.server.go_on.wait(WAIT_S)
                continue
            self._chunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _wait_for_disconnect(self) -> None:
        select.select([self.connection], [], [], WAIT_S)
        if self.connection.recv(1) == b"":
            self.server.client_disconnected.set()
        self.close_connection = True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _json(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate what the chat remembers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join(WAIT_S)


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        adopt = (
            "import fcntl, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            # SIGINT is ignored if a shell started the tests in the background
            "signal.signal(signal.SIGINT, signal.default_int_handler); "
        )
        run = "from antiphon.cli.main import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", adopt + run, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
        )
        os.close(slave)
        self.shown = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def type_until(self, key: str, text: str) -> None:
        """Press a key until ``text`` is shown. Python misses a signal that arrives just before it
        starts to wait, although the terminal echoes the key."""
        for _ in range(WAIT_S):
            self.type(key)
            while text not in self.shown and select.select([self._master], [], [], 1)[0]:
                self.shown += self._decode(os.read(self._master, 65536))
            if text in self.shown:
                self.until(text)
                return
        raise AssertionError(f"{text!r} was not shown")

    def until(self, text: str) -> str:
        """Wait for ``text``; return the output since the last call, up to and including it."""
        deadline = time.monotonic() + WAIT_S
        while text not in self.shown:
            ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} was not shown, but {self.shown!r}"
            try:
                self.shown += self._decode(os.read(self._master, 65536))
            except OSError:  # on Linux: the other end is closed
                raise AssertionError(f"{text!r} was not shown, but {self.shown!r}") from None
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def wait(self) -> int:
        """Wait for the process; return its exit code."""
        code = self.process.wait(WAIT_S)
        os.close(self._master)
        return code


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield open_terminal
    for each in opened:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait(WAIT_S)


# --- in a terminal -------------------------------------------------------------------------------


@pytest.mark.e2e
def test_messages_continue_the_conversation(
    fake: FakeServer, terminal: Callable[..., Terminal]
) -> None:
    fake.answers = {
        "hi": [
            delta("Hmm.", "reasoning_text"),
            {"type": "response.output_item.done", "item": {"type": "reasoning"}},
            delta("Hel"),
            delta("lo [b]you[/b] 👋"),
            ended("resp_1"),
        ],
        "more": [
            delta("No."),
            ended("resp_2", "incomplete", incomplete_details={"reason": "max_output_tokens"}),
        ],
        "again": [delta("Well."), ended("resp_3")],
    }
    screen = terminal("chat", "--url", fake.url, "--model", "gpt-5.5")
    assert "/quit" in screen.until("> ")
    screen.type("hi\r")
    shown = screen.until("👋")
    assert "\x1b[2mHmm." in shown, "reasoning is dim"
    assert shown.endswith("Hello [b]you[/b] 👋")
    screen.until("> ")
    screen.type("more\r")
    assert "(incomplete: max_output_tokens)" in screen.until("> ")
    screen.type("/new\r")
    screen.until("> ")
    screen.type("again\r")
    screen.until("Well.")
    screen.until("> ")
    screen.type("/quit\r")
    assert screen.wait() == 0
    assert [body.get("previous_response_id") for body in fake.requests] == [None, "resp_1", None]
    assert {body["model"] for body in fake.requests} == {"gpt-5.5"}
    assert all(body["stream"] is True for body in fake.requests)


@pytest.mark.e2e
def test_ctrl_c_stops_the_answer_only(fake: FakeServer, terminal: Callable[..., Terminal]) -> None:
    fake.answers = {
        "first": [delta("One."), ended("resp_1")],
        "long": [delta("It was a dark and"), None],
        "next": [delta("Two."), ended("resp_2")],
    }
    screen = terminal("chat", "--url", fake.url)
    screen.until("> ")
    screen.type("first\r")
    screen.until("One.")
    screen.until("> ")
    screen.type("long\r")
    screen.until("dark and")
    screen.type_until("\x03", "stopped")
    assert fake.client_disconnected.wait(WAIT_S), "Ctrl-C disconnects"
    screen.until("> ")
    screen.type("next\r")
    screen.until("Two.")
    screen.until("> ")
    screen.type_until("\x03", "/quit")  # while typing: a reminder how to leave
    screen.until("> ")
    screen.type("\x04")
    assert screen.wait() == 0
    assert [body.get("previous_response_id") for body in fake.requests] == [
        None,
        "resp_1",
        "resp_1",
    ]


@pytest.mark.e2e
def test_errors_are_shown_and_the_chat_continues(
    fake: FakeServer, terminal: Callable[..., Terminal]
) -> None:
    fake.answers = {
        "refuse": 400,
        "fail": [delta("So"), ended("resp_1", "failed", error={"message": "The engine broke."})],
        "fine": [delta("Fine."), ended("resp_2")],
    }
    screen = terminal("chat", "--url", fake.url)
    screen.until("> ")
    for typed, shown in (
        ("refuse", "refused with 400"),
        ("fail", "The engine broke."),
        ("/nwe", "(unknown command)"),
        ("", "> "),
        ("fine", "Fine."),
    ):
        screen.type(f"{typed}\r")
        screen.until(shown)
        if typed:
            screen.until("> ")
    screen.type("\x04")
    assert screen.wait() == 0
    assert [body["input"] for body in fake.requests] == ["refuse", "fail", "fine"]
    assert fake.requests[-1].get("previous_response_id") is None


@pytest.mark.e2e
def test_control_characters_are_removed(
    fake: FakeServer, terminal: Callable[..., Terminal]
) -> None:
    fake.answers = {"hi": [delta("a\x1b]0;owned\x07b\x9b2Jc\rd\ne"), ended("resp_1")]}
    screen = terminal("chat", "--url", fake.url)
    screen.until("> ")
    screen.type("hi\r")
    assert "a]0;ownedb2Jcd\r\ne" in screen.until("> ")


@pytest.mark.e2e
def test_pasted_lines_are_one_message(fake: FakeServer, terminal: Callable[..., Terminal]) -> None:
    fake.answers = {"one\ntwo": [delta("Both."), ended("resp_1")]}
    screen = terminal("chat", "--url", fake.url)
    assert "\x1b[?2004h" in screen.until("> "), "the terminal is asked to mark pastes"
    screen.type("\x1b[200~one\rtwo\x1b[201~\r")
    screen.until("Both.")
    assert [body["input"] for body in fake.requests] == ["one\ntwo"]


@pytest.mark.e2e
def test_typing_during_an_answer_is_the_next_message(
    fake: FakeServer, terminal: Callable[..., Terminal]
) -> None:
    fake.answers = {
        "long": [delta("It was "), delta("WAIT"), delta("dark."), ended("resp_1")],
        "typed early": [delta("Next."), ended("resp_2")],
    }
    screen = terminal("chat", "--url", fake.url)
    screen.until("> ")
    screen.type("long\r")
    screen.until("WAIT")
    screen.type("typed early\r")
    fake.go_on.set()
    assert "typed" not in screen.until("dark."), "it is not shown within the answer"
    screen.until("Next.")
    assert [body["input"] for body in fake.requests] == ["long", "typed early"]


@pytest.mark.e2e
def test_tools_sources_and_files_are_shown(
    fake: FakeServer, terminal: Callable[..., Terminal]
) -> None:
    def item(type: str, **fields: Any) -> Event:
        return {"type": "response.output_item.done", "item": {"type": type, **fields}}

    def source(**fields: Any) -> Event:
        return {"type": "response.output_text.annotation.added", "annotation": fields}

    png = base64.b64encode(b"\x89PNG").decode()
    fake.answers = {
        "hi": [
            item("web_search_call", action={"type": "search", "query": "fjords"}),
            item("code_interpreter_call", code="1+1", outputs=[{"type": "logs", "logs": "2"}]),
            item("mcp_call", server_label="toys", name="add", arguments="{}", output="42"),
            item("shell_call", action={"commands": ["ls"]}),
            item("shell_call_output", output=[{"stdout": "a.txt", "stderr": ""}]),
            item("image_generation_call", result=png, output_format="png"),
            delta("See."),
            source(type="url_citation", url="https://a.example/", title="A"),
            source(type="url_citation", url="https://a.example/", title="A"),
            source(
                type="container_file_citation", container_id="c1", file_id="f1", filename="p.csv"
            ),
            ended("resp_1", ignored_tools=[{"type": "shell", "reason": "there is no sandbox"}]),
        ]
    }
    screen = terminal("chat", "--url", fake.url)
    screen.until("> ")
    screen.type("hi\r")
    shown = screen.until("\x1b[?2004h")
    for line in (
        "[web_search] fjords",
        "[code_interpreter] 1+1",
        "  2",
        "[mcp] toys: add({})",
        "  42",
        "[shell] ls",
        "[1] A  https://a.example/",
        f"[2] p.csv  {fake.url}/v1/containers/c1/files/f1/content",
        "(ignored tool shell: there is no sandbox)",
    ):
        assert line in shown
    link = re.search(r"\[image\] file://(\S+\.png)", shown)
    assert link is not None
    image = Path(link[1])
    assert image.read_bytes() == b"\x89PNG"
    image.unlink()
    assert shown.count("[1] A") == 1 and "[3]" not in shown


@pytest.mark.e2e
def test_commands_shape_the_requests(
    fake: FakeServer, terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    picture, saved = tmp_path / "p.png", tmp_path / "saved.md"
    picture.write_bytes(b"\x89PNG")
    fake.answers = {
        "look": [delta("A dot."), ended("resp_1")],
        "more": [delta("No."), ended("resp_2")],
    }
    screen = terminal("chat", "--url", fake.url)
    screen.until("> ")
    for typed, shown in (
        ("/model other", "there is no model other"),
        ("/model gpt-5.5", "(model: gpt-5.5; there are tiny, gpt-5.5)"),
        ("/system Be brief.", "(instructions are set)"),
        ("/tools web_search mcp:toys", "(tools: web_search, mcp:toys;"),
        ("/tools nonsense", "there is no tool nonsense"),
        (f"/file {tmp_path}/absent", "No such file"),
        (f"/file {picture}", "goes with the next message"),
        ("look", "A dot."),
        ("/tools off", "(tools: none;"),
        ("/system", "(no instructions)"),
        ("more", "No."),
        ("/retry", "No."),
        (f"/save {saved}", "(saved to"),
        ("/help", "/retry"),
    ):
        screen.type(f"{typed}\r")
        screen.until(shown)
        screen.until("\x1b[?2004h")
    look, more, again = fake.requests
    assert (look["model"], look["instructions"]) == ("gpt-5.5", "Be brief.")
    assert look["tools"] == [{"type": "web_search"}, {"type": "mcp", "server_label": "toys"}]
    image, text = look["input"][0]["content"]
    assert image["type"] == "input_image" and image["image_url"].startswith(
        "data:image/png;base64,"
    )
    assert text == {"type": "input_text", "text": "look"}
    assert more == again, "the same message after the same response"
    assert more["previous_response_id"] == "resp_1"
    assert "tools" not in more and "instructions" not in more
    assert saved.read_text() == (
        "**You:** look\n\n**Answer:** A dot.\n\n**You:** more\n\n**Answer:** No.\n"
    )


@pytest.mark.e2e
def test_mcp_calls_are_approved_by_the_user(
    fake: FakeServer, terminal: Callable[..., Terminal]
) -> None:
    request = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "toys",
        "name": "add",
        "arguments": "{}",
    }
    fake.answers = {
        "hi": [{"type": "response.output_item.done", "item": request}, ended("resp_1")],
        "mcp_approval_response": [delta("It is 42."), ended("resp_2")],
    }
    screen = terminal("chat", "--url", fake.url)
    screen.until("> ")
    screen.type("hi\r")
    assert "[approval] toys: add({})" in screen.until("[y/N] ")
    screen.type("y\r")
    screen.until("It is 42.")
    assert fake.requests[1]["input"] == [
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    ]
    assert fake.requests[1]["previous_response_id"] == "resp_1"


@pytest.mark.e2e
def test_server_used_last_is_found_again(
    fake: FakeServer, terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("ANTIPHON_PORT", str(free.getsockname()[1]))
    first = terminal("chat", "--port", str(fake.server_address[1]))
    first.until("> ")
    first.type("\x04")
    assert first.wait() == 0
    again = terminal("chat")
    assert fake.url in again.until("> "), "nothing listens at the configured port"


# --- without a terminal --------------------------------------------------------------------------


@pytest.mark.e2e
def test_pipe_shows_no_prompts(fake: FakeServer) -> None:
    fake.answers = {"hi": [delta("Hello"), ended("resp_1")]}
    done = subprocess.run(
        [sys.executable, "-m", "antiphon", "chat", "--url", fake.url, "--key", "sk-1"],
        input="hi\n",
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert done.stdout.endswith("Hello\n")
    assert ">" not in done.stdout
    assert fake.keys == ["Bearer sk-1"]


def test_no_server_is_an_error_that_names_the_serve_command() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(SetupError) as caught:
        chat(Server(url))
    assert str(caught.value) == (
        f"no server answers at {url}/v1; start one with: {antiphon_command('serve')}"
    )


def test_rejected_key_shows_the_message_of_the_server(fake: FakeServer) -> None:
    fake.status = 401
    with pytest.raises(SetupError, match=r"^No models for you\.$"):
        chat(Server(fake.url))
    assert fake.keys == [None]


def test_unknown_model_error_lists_the_served_models(fake: FakeServer) -> None:
    with pytest.raises(SetupError, match=r"does not serve 'other'; it serves tiny, gpt-5\.5"):
        chat(Server(fake.url), model="other")


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://h:port", "http://h:99999"])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(SetupError, match="is not a server URL"):
        Server(url)


def test_url_may_omit_scheme_and_v1(fake: FakeServer) -> None:
    for url in (fake.url, f"{fake.url}/v1", f"{fake.url}/v1/", fake.url.removeprefix("http://")):
        assert Server(url).models() == ["tiny", "gpt-5.5"]
    assert Server("https://h/prefix").url == "https://h/prefix/v1"


def test_invalid_json_in_the_stream_is_an_error(fake: FakeServer) -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        list(sse([b"data: nonsense\n"]))
    fake.answers = {"x": 500}
    with pytest.raises(RequestFailed, match="refused with 500"):
        list(Server(fake.url).events({"input": "x"}))


def test_sse_reads_data_lines_until_done() -> None:
    lines = [
        b": ping\n",
        b"event: a\r\n",
        b'data:{"type": "a"}\r\n',
        b"\n",
        b"data: [DONE]\n",
        b"data: {}\n",
    ]
    assert list(sse(lines)) == [{"type": "a"}]

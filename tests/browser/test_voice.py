"""The microphone and the voice of the playground, with a fake microphone and a server of fakes."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from tests.browser.conftest import Visitor, model, visiting
from tests.e2e.server import Server, serving

SILENCE = (
    b"RIFF"
    + struct.pack("<I", 36 + 4800)
    + b"WAVEfmt "
    + struct.pack("<IHHIIHH", 16, 1, 1, 24_000, 48_000, 2, 16)
    + b"data"
    + struct.pack("<I", 4800)
    + bytes(4800)
)


class _Audio(BaseHTTPRequestHandler):
    """A server that hears the same in every recording, and reads nothing aloud."""

    requests: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.requests.append((self.path, body))
        speaks = self.path.endswith("speech")
        answer = SILENCE if speaks else json.dumps({"text": "Tell me about rivers"}).encode()
        self.send_response(200)
        self.send_header("content-type", "audio/wav" if speaks else "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), _Audio)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{upstream.server_port}"
    models = model() + "".join(
        f'[models.{name}]\nengine = "{engine}"\nsource = "{url}"\nupstream_model = "x"\n'
        for name, engine in (("ears", "transcriptions"), ("mouth", "speech"))
    )
    with serving(tmp_path_factory.mktemp("voice"), "", model=models) as running:
        yield running
    upstream.shutdown()
    upstream.server_close()


def test_voice_is_off_and_absent_without_models(visitor: Visitor) -> None:
    page = visitor.open()
    visitor.answered("Tell me about rivers")
    assert page.get_by_role("button", name="Speak").count() == 0
    assert page.get_by_role("button", name="Read aloud").count() == 0


def test_user_speaks_and_listens(browser: Any, hearing: Server) -> None:
    with visiting(browser, hearing.root) as visitor:
        page = visitor.open()
        assert page.get_by_role("button", name="Speak").count() == 0
        page.get_by_text("Voice", exact=True).click()
        page.get_by_role("switch", name="Microphone").check()
        page.get_by_role("switch", name="Read aloud").check()
        page.get_by_role("button", name="Speak").click()
        page.get_by_role("button", name="Stop the recording").click()
        page.get_by_role("button", name="Speak", disabled=False).wait_for()
        assert page.get_by_label("Message", exact=True).input_value() == "Tell me about rivers"
        page.get_by_role("button", name="Send", exact=True).click()
        with page.expect_response("**/v1/audio/speech"):
            page.get_by_role("button", name="Read aloud").click()
        page.get_by_role("button", name="Stop reading").wait_for(state="detached")
        page.get_by_role("button", name="Read aloud").wait_for()
        path, body = _Audio.requests[-1]
    assert (path, json.loads(body)["voice"]) == ("/v1/audio/speech", "alloy")

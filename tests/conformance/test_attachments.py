"""Images and files in requests: what the model sees, what is stored, what is rejected."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.attachments.fetch import Fetcher
from antiphon.backends.base import BackendCapabilities
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import UnreadableImage
from antiphon.inference.conversation import Conversation, Options
from antiphon.resources.file_storage.files import Files
from antiphon.runs.background import jobs
from antiphon.runs.request import attachments
from antiphon.store.base import Store
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire import items as it
from tests.attachments.samples import GIF, data_url, docx, pdf, png
from tests.conformance.conftest import Serve
from tests.conformance.server import Ask, Json, Server

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def message(*parts: Json) -> list[Json]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "Look:"}, *parts]}]


def image(**fields: Any) -> Json:
    return {"type": "input_image", **fields}


def file(**fields: Any) -> Json:
    return {"type": "input_file", **fields}


def last_parts(server: Server) -> list[it.Part]:
    """Return the parts of the last prompt, without the first."""
    conversation, _ = server.backend.requests[-1]  # type: ignore[attr-defined]
    parts: list[it.Part] = []
    for item in conversation.items:
        value = item.output if hasattr(item, "output") else getattr(item, "content", ())
        if isinstance(value, it.ComputerScreenshot):
            parts.append(value)
        elif not isinstance(value, str):
            parts += value
    return [part for part in parts if getattr(part, "text", "") != "Look:"]


async def upload(server: Server, content: bytes, name: str = "a") -> str:
    answer = await server.client.post(
        "/v1/files", files={"file": (name, content)}, data={"purpose": "user_data"}
    )
    return str(answer.json()["id"])


@pytest.fixture
async def site() -> AsyncIterator[str]:
    """Serve an image and a document."""
    app = web.Application()
    kinds = {"/a.png": (png(), "image/png"), "/a.txt": (b"From afar", "text/plain")}

    async def answer(request: web.Request) -> web.Response:
        if request.path not in kinds:
            raise web.HTTPNotFound
        body, kind = kinds[request.path]
        return web.Response(body=body, content_type=kind)

    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    ours = (ipaddress.ip_network("127.0.0.1/32"),)
    fetcher = Fetcher.open(max_bytes=10_000, clock=lambda: 0.0, networks=ours)
    yield fetcher
    await fetcher.close()


# --- images --------------------------------------------------------------------------------------


@pytest.mark.requirement("FILE-IMAGES")
async def test_image_is_checked_and_reaches_the_model(serve: Serve, ask: Ask) -> None:
    server = serve()
    url = data_url(png())
    await ask(server, input=message(image(image_url=url, detail="low"), image(image_url=url)))
    assert last_parts(server) == [
        it.InputImage(image_url=url, detail="low"),
        it.InputImage(image_url=url),
    ]


@pytest.mark.requirement("FILE-IMAGES")
async def test_image_type_is_detected_from_its_bytes(serve: Serve) -> None:
    server = serve()
    content = GIF
    for url in (data_url(content, "image/png"), data_url(content, "application/octet-stream")):
        await server.post(input=message(image(image_url=url)))
        assert last_parts(server) == [it.InputImage(image_url=data_url(content, "image/gif"))]


@pytest.mark.requirement("FILE-IMAGES")
async def test_images_by_id_and_by_url(serve: Serve, fetcher: Fetcher, site: str) -> None:
    server = serve(fetcher=fetcher)
    name = await upload(server, png())
    parts = (image(file_id=name), image(image_url=f"{site}/a.png", detail="high"))
    answer = await server.post(input=message(*parts))
    assert answer.status_code == 200, answer.text
    url = data_url(png())
    assert last_parts(server) == [
        it.InputImage(image_url=url),
        it.InputImage(image_url=url, detail="high"),
    ]


@pytest.mark.requirement("FILE-IMAGES")
async def test_images_in_tool_outputs(serve: Serve) -> None:
    server = serve()
    url = data_url(png())
    name = await upload(server, png())
    screen = {"type": "computer_screenshot", "file_id": name}
    items = [
        CALL,
        {"type": "function_call_output", "call_id": "c", "output": [image(image_url=url)]},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": ""},
        {"type": "custom_tool_call_output", "call_id": "d", "output": [image(file_id=name)]},
        {"type": "computer_call", "call_id": "e", "status": "completed"},
        {"type": "computer_call_output", "call_id": "e", "output": screen},
    ]
    answer = await server.post(input=items)
    assert answer.status_code == 200, answer.text
    assert last_parts(server) == [
        it.InputImage(image_url=url),
        it.InputImage(image_url=url),
        it.ComputerScreenshot(image_url=url),
    ]


@pytest.mark.requirement("FILE-IMAGES")
async def test_base64_may_contain_line_breaks(serve: Serve) -> None:
    server = serve()
    url = data_url(png())
    await server.post(input=message(image(image_url=f"{url[:60]}\r\n{url[60:]}\n")))
    assert last_parts(server) == [it.InputImage(image_url=url)]


async def test_missing_file_is_looked_up_once_per_request() -> None:
    class Nothing(Files):
        request_count = 0

        async def read(self, tenant: str, file_id: str) -> Any:
            self.request_count += 1
            return await super().read(tenant, file_id)

    files = Nothing(MemoryStore(), clock=lambda: 0, ids=str)
    removed = it.Message(role="user", content=(it.InputFile(file_id="file-x"),))
    backend = ScriptedBackend(["Hi"])
    one = attachments.Attachments(files).resolving_backend(backend, "t")
    for _ in range(3):
        await one.prepare(Conversation((removed,), past_count=1), Options())
    assert files.request_count == 1
    (last_parts,) = backend.requests[-1][0].items[0].content
    assert last_parts.text == "[file omitted: it can no longer be read]"


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.requirement("FILE-INPUT")
async def test_files_are_read_as_text(serve: Serve, fetcher: Fetcher, site: str) -> None:
    pytest.importorskip("kreuzberg")
    server = serve(fetcher=fetcher)
    name = await upload(server, docx("In Word"), "a.docx")
    parts = (
        file(file_data=data_url(b"a,b", "text/csv"), filename="a.csv"),
        file(file_data="cGxhaW4="),
        file(file_data="data:text/plain,p%20q"),
        file(file_data=data_url(pdf("In PDF"), "application/pdf"), filename="b.pdf"),
        file(file_id=name),
        file(file_url=f"{site}/a.txt"),
        file(file_data=data_url(png(), "image/png"), filename="c.png", detail="low"),
    )
    answer = await server.post(input=message(*parts))
    assert answer.status_code == 200, answer.text
    *texts, picture = last_parts(server)
    assert [part.text.rstrip() for part in texts] == [  # type: ignore[union-attr]
        "[file 'a.csv']\na,b",
        "[file]\nplain",
        "[file]\np q",
        "[file 'b.pdf']\nIn PDF",
        "[file 'a.docx']\nIn Word",
        "[file 'a.txt']\nFrom afar",
    ]
    assert picture == it.InputImage(image_url=data_url(png()), detail="low")


@pytest.mark.requirement("FILE-INPUT")
async def test_pages_of_a_pdf_are_images_with_high_detail(serve: Serve) -> None:
    pytest.importorskip("kreuzberg")
    server = serve()
    parts = (
        file(file_data=data_url(pdf("One", "Two"), "application/pdf"), detail="high"),
        file(file_data=data_url(pdf("Three"), "application/pdf")),
        file(file_data=data_url(b"Four", "text/plain"), detail="high"),
    )
    answer = await server.post(input=message(*parts, {"type": "input_text", "text": "Compare"}))
    assert answer.status_code == 200, answer.text
    seen = last_parts(server)
    texts = [part.text.strip() for part in seen if isinstance(part, it.InputText)]
    assert [text.split()[-1] for text in texts] == ["Two", "Three", "Four", "Compare"]
    assert [type(part) for part in seen[1:3]] == [it.InputImage, it.InputImage]
    assert [part.detail for part in seen[1:3] if isinstance(part, it.InputImage)] == ["high"] * 2
    assert len(seen) == 6
    response = answer.json()["id"]
    listed = await server.client.get(f"/v1/responses/{response}/input_items")
    assert len(listed.json()["data"][0]["content"]) == 5  # as it was sent


@pytest.mark.requirement("FILE-INPUT")
async def test_models_without_images_see_the_text_of_a_pdf_with_high_detail(serve: Serve) -> None:
    pytest.importorskip("kreuzberg")
    backend = ScriptedBackend()
    backend.capabilities = BackendCapabilities(images=False)
    server = serve(backend)
    part = file(file_data=data_url(pdf("One"), "application/pdf"), detail="high")
    assert (await server.post(input=message(part))).status_code == 200
    assert [type(part) for part in last_parts(server)] == [it.InputText]


@pytest.mark.requirement("FILE-INPUT")
async def test_files_in_every_request_mode(serve: Serve, ask: Ask) -> None:
    server = serve()
    output = [file(file_data="eA==", filename="x.txt")]
    items = [CALL, {"type": "function_call_output", "call_id": "c", "output": output}]
    await ask(server, input=items)
    assert last_parts(server) == [it.InputText(text="[file 'x.txt']\nx")]


# --- storage -------------------------------------------------------------------------------------


@pytest.mark.requirement("FILE-STORED")
async def test_stored_input_equals_sent_input(
    store: Store, serve: Serve, fetcher: Fetcher, site: str
) -> None:
    server = serve(on=store, fetcher=fetcher)
    name = await upload(server, b"secret text", "a.txt")
    parts = [file(file_id=name), image(image_url=f"{site}/a.png", detail="auto")]
    first = (await server.post(input=message(*parts))).json()
    listed = (await server.client.get(f"/v1/responses/{first['id']}/input_items")).json()
    assert listed["data"][0]["content"][1:] == parts
    await server.post(input="And?", previous_response_id=first["id"])
    assert [type(part) for part in last_parts(server)[:2]] == [it.InputText, it.InputImage]
    await server.client.delete(f"/v1/files/{name}")
    second = await server.post(input="And now?", previous_response_id=first["id"])
    assert second.status_code == 200
    assert last_parts(server)[0] == it.InputText(text="[file omitted: it can no longer be read]")
    again = await server.post(input=message(*parts), previous_response_id=first["id"])
    assert again.status_code == 404
    assert again.json()["error"]["param"] == "input[0].content[1].file_id"


@pytest.mark.requirement("FILE-REFUSED")
async def test_model_errors_about_an_image_name_its_part(serve: Serve) -> None:
    """An image with damaged data: an error if it is new, a note if it is from an earlier turn."""
    broken = png(5, 5)

    def script(conversation: Conversation, options: Options) -> Any:
        if data_url(broken) in str(conversation.items) and options.temperature:
            return UnreadableImage("it is truncated", broken)
        return "Yes."

    server = serve(ScriptedBackend(script))
    parts = [image(image_url=data_url(png())), image(image_url=data_url(broken))]
    rejection = await server.post(input=message(*parts))
    error = rejection.json()["error"]
    assert (rejection.status_code, error["code"]) == (400, "image_parse_error")
    assert error["param"] == "input[0].content[2].image_url"
    assert error["message"] == f"Invalid image in '{error['param']}': it is truncated."
    first = (await server.post(input=message(*parts), temperature=0)).json()
    assert first["status"] == "completed"
    second = await server.post(input="And?", previous_response_id=first["id"])
    assert second.status_code == 200
    assert last_parts(server)[:2] == [
        it.InputImage(image_url=data_url(png())),
        it.InputText(text="[image omitted: it can no longer be read]"),
    ]


@pytest.mark.requirement("FILE-STORED")
async def test_background_run_reads_files_in_another_process(
    store: Store, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(on=store)
    name = await upload(server, b"text", "a.txt")
    monkeypatch.setattr(jobs, "_MAX_PREPARED", 0)  # as in another process
    queued = (await server.post(input=message(file(file_id=name)), background=True)).json()
    async with asyncio.timeout(60):
        while queued["status"] in ("queued", "in_progress"):
            queued = (await server.client.get(f"/v1/responses/{queued['id']}")).json()
            await asyncio.sleep(0.01)
    assert queued["status"] == "completed"
    assert last_parts(server) == [it.InputText(text="[file 'a.txt']\ntext")]
    assert len(server.backend.requests) == 2, "it was prepared twice"  # type: ignore[attr-defined]


@pytest.mark.requirement("FILE-STORED")
async def test_token_count_includes_files(serve: Serve) -> None:
    server = serve()
    body = {"model": "tiny", "input": message(file(file_data="YSBiIGM="))}
    answer = await server.client.post("/v1/responses/input_tokens", json=body)
    assert answer.json()["input_tokens"] == 5


# --- rejections ----------------------------------------------------------------------------------


@pytest.mark.requirement("FILE-REFUSED")
@pytest.mark.parametrize(
    ("part", "field", "code"),
    [
        (image(), ".image_url", "missing_required_parameter"),
        (image(image_url=""), "", "invalid_image"),
        (image(image_url="data:image/png;base64,%%"), ".image_url", "invalid_base64_image"),
        (image(image_url="data:image/png"), ".image_url", "invalid_base64_image"),
        (image(image_url="data:image/png;base64,"), ".image_url", "empty_image_file"),
        (image(image_url=data_url(b"<svg/>")), ".image_url", "invalid_image_format"),
        (image(image_url=data_url(png()[:20])), ".image_url", "image_parse_error"),
        (image(image_url=data_url(png(0, 1))), ".image_url", "image_parse_error"),
        (image(image_url="ftp://x/y"), ".image_url", "invalid_image_url"),
        (image(image_url="picture.png"), ".image_url", "invalid_image_url"),
        (image(image_url="http://u:p@127.0.0.1/"), ".image_url", "invalid_image_url"),
        (image(image_url="http://127.0.0.2:9/"), ".image_url", "failed_to_download_image"),
        (file(), ".file_data", "missing_required_parameter"),
        (file(file_url=""), "", "invalid_file"),
        (file(file_data="%"), ".file_data", "invalid_file_data"),
        (file(file_data="data:;base64,"), ".file_data", "empty_file"),
        (file(file_data=data_url(b"\x7fELF\0")), ".file_data", "unsupported_file"),
        (file(file_url="http://127.0.0.2:9/"), ".file_url", "failed_to_download_file"),
        (file(file_url="file:///etc/passwd"), ".file_url", "invalid_file_url"),
    ],
)
async def test_unusable_part_is_rejected_with_its_path(
    serve: Serve, ask_foreground: Ask, fetcher: Fetcher, part: Json, field: str, code: str
) -> None:
    server = serve(fetcher=fetcher)
    rejection = (await ask_foreground(server, input=[*message(), *message(part)])).rejection
    assert rejection["http"] == 400
    assert (rejection["param"], rejection["code"]) == (f"input[1].content[1]{field}", code)
    assert not server.backend.requests  # type: ignore[attr-defined]


@pytest.mark.requirement("FILE-REFUSED")
async def test_encrypted_or_damaged_documents_are_rejected(serve: Serve) -> None:
    pytest.importorskip("kreuzberg")
    server = serve()
    for content, output in ((pdf("x", encrypted=True), "password"), (b"%PDF-1.4", "damaged")):
        answer = await server.post(input=message(file(file_data=data_url(content))))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_file")
        assert output in error["message"] and error["param"] == "input[0].content[1].file_data"


@pytest.mark.requirement("FILE-REFUSED")
@pytest.mark.parametrize(
    ("part", "code"),
    [(image(file_id="file-x"), "image_file_not_found"), (file(file_id="file-x"), "file_not_found")],
)
async def test_unknown_file_returns_404(serve: Serve, part: Json, code: str) -> None:
    answer = await serve().post(input=message(part))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, code)
    assert error["param"] == "input[0].content[1].file_id"
    assert error["message"] == "No such File object: file-x"


@pytest.mark.requirement("FILE-REFUSED")
async def test_urls_are_rejected_without_a_fetcher(serve: Serve) -> None:
    answer = await serve().post(input=message(image(image_url="http://127.0.0.1:9/a.png")))
    assert answer.json()["error"]["code"] == "invalid_image_url"
    assert "fetches no URLs" in answer.json()["error"]["message"]


@pytest.mark.requirement("FILE-REFUSED")
async def test_too_large_attachments_are_rejected(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, fetcher: Fetcher
) -> None:
    server = serve(fetcher=fetcher)
    small = png()
    huge = small[:16] + b"\0\1\0\0" * 2 + small[24:]  # 65536 x 65536 in its header
    wide = message(image(image_url=data_url(huge)))
    assert (await server.post(input=wide)).json()["error"]["code"] == "image_too_large"
    urls = [image(image_url=f"http://127.0.0.2:9/{number}") for number in range(51)]
    assert "Too many URLs" in (await server.post(input=message(*urls))).text
    many = [file(file_data="eA==")] * 501
    assert "Too many images and files" in (await server.post(input=message(*many))).text
    monkeypatch.setattr(attachments, "_MAX_TOTAL_BYTES", 10)
    texts = [file(file_data="MTIzNDU2"), file(file_data="MTIzNDU3")]
    assert (await server.post(input=message(*texts))).json()["error"]["code"] == "file_too_large"
    monkeypatch.setattr(attachments, "_MAX_IMAGE_BYTES", 10)
    large = await server.post(input=message(image(image_url=data_url(png()))))
    assert large.json()["error"]["code"] == "image_file_too_large"


_TEXT = st.text(max_size=30) | st.sampled_from(
    ["data:", "data:,", "data:image/png;base64,iVBORw0KGgo=", "http://[", "http://\x00", "file-1",
     "data:;base64,JVBERi0=", "https://", "data:text/html,<p>"]
)  # fmt: skip
_FIELDS = ("image_url", "file_id", "file_data", "file_url", "filename", "detail")


@pytest.mark.requirement("FILE-REFUSED")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from(["input_image", "input_file"]),
    st.dictionaries(st.sampled_from(_FIELDS), _TEXT | st.none() | st.integers()),
)
async def test_no_part_causes_a_server_error(serve: Serve, kind: str, fields: Json) -> None:
    answer = await serve().post(input=message({"type": kind, **fields}))
    assert answer.status_code in (200, 400, 404), answer.text

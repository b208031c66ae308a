"""Read forms with files (``multipart/form-data``). The size of a form is limited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager

from msgspec import Struct
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Receive, Scope

from antiphon.errors import InvalidRequest
from antiphon.http.middleware.request_context import RequestContext, header, request_context
from antiphon.wire.parsing.errors import missing_parameter
from antiphon.wire.parsing.upload_form import safe_filename

from . import body as bodies

#: Limits of a form besides its file: number of fields, bytes of each field, and bytes of all
#: boundaries and headers.
_MAX_FIELDS, _FIELD_BYTES, _FORM_OVERHEAD = 24, 4096, 64 * 2**10
#: Bytes of boundary and headers of each further file.
_FILE_OVERHEAD = 2048
#: Bytes of a file that are read from its buffer at a time.
_CHUNK_BYTES = 2**20


class FileForm(Struct, frozen=True):
    """A form with one file. ``filename``: the file's name without folders. ``size``: the file's
    size in bytes. ``chunks`` yields the file's content; it can be read only once, and only while
    the form is open. ``pairs``: names and values of the other form fields, in their order.
    ``fields``: the same; of several fields with the same name, the last one."""

    filename: str
    size: int
    chunks: AsyncGenerator[bytes, None]
    pairs: tuple[tuple[str, str], ...]

    @property
    def fields(self) -> Mapping[str, str]:
        return dict(self.pairs)


class FilesForm(Struct, frozen=True):
    """A form with several files. ``files``: one pair for each file, with the path that the client
    sent and the content. ``fields``: the other form fields. ``more_files``: the contents of files
    in other fields, by the names of the fields."""

    files: tuple[tuple[str, bytes], ...]
    fields: Mapping[str, str]
    more_files: Mapping[str, bytes] = {}


@asynccontextmanager
async def open_form(
    scope: Scope, receive: Receive, *, file: str, limit: int
) -> AsyncIterator[FileForm]:
    """Read a form with one file, in the field ``file``. ``limit``: maximum bytes of the file.

    Large files are buffered on disk until the end of the block. Raises ``InvalidRequest``,
    ``TooLarge``, ``ClientDisconnected``.
    """
    form = await _parse_form(scope, bodies.stream(scope, receive, limit + _FORM_OVERHEAD))
    try:
        upload = form.get(file)
        if not isinstance(upload, UploadFile):
            raise missing_parameter(file)
        size = upload.size or 0
        if size > limit:
            raise bodies.too_large(limit)
        pairs = tuple((name, each) for name, each in form.multi_items() if isinstance(each, str))
        async with aclosing(_chunks(upload, request_context(scope))) as chunks:
            yield FileForm(safe_filename(upload.filename or ""), size, chunks, pairs)
    finally:
        await form.close()


async def _chunks(upload: UploadFile, context: RequestContext) -> AsyncGenerator[bytes, None]:
    """Yield the content. Then raise ``Unauthorized`` if the client has lost its access since it
    began to send it, so that nothing is stored."""
    while chunk := await upload.read(_CHUNK_BYTES):
        yield chunk
    await context.check_access()


async def read_content(scope: Scope, form: FileForm) -> bytes:
    """Return the whole content of the form's file."""
    if form.size > bodies.SMALL_BYTES:  # until now, it is on the disk
        await request_context(scope).hold_memory(form.size)
    return b"".join([chunk async for chunk in form.chunks])


async def read_files(
    scope: Scope,
    receive: Receive,
    *,
    file: str,
    limit: int,
    max_files: int,
    field_bytes: int = _FIELD_BYTES,
) -> FilesForm:
    """Read a form with at most ``max_files`` files. ``limit``: maximum bytes of all files together.
    ``field_bytes``: maximum bytes of each other field.

    ``file``: name of the field with the files. The client may append brackets to the name, as in
    ``files[]``. Raises the same errors as ``open_form``.
    """
    max_bytes = limit + max_files * _FILE_OVERHEAD + _FORM_OVERHEAD + field_bytes
    size = bodies.declared_size(scope, max_bytes) or max_bytes
    if size > bodies.SMALL_BYTES:
        await request_context(scope).hold_memory(size)
    chunks = bodies.stream(scope, receive, max_bytes)
    form = await _parse_form(scope, chunks, max_files, field_bytes)
    try:
        parts = form.multi_items()
        uploads = [(name, part) for name, part in parts if isinstance(part, UploadFile)]
        files = [each for name, each in uploads if name.partition("[")[0] == file]
        if not files:
            raise missing_parameter(file)
        if sum(each.size or 0 for _, each in uploads) > limit:
            raise bodies.too_large(limit)
        await request_context(scope).check_access()
        contents = tuple([(each.filename or "file", await each.read()) for each in files])
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        more = {name: await each.read() for name, each in uploads if each not in files}
        return FilesForm(contents, fields, more)
    finally:
        await form.close()


async def _parse_form(
    scope: Scope,
    chunks: AsyncGenerator[bytes, None],
    max_files: int = 1,
    field_bytes: int = _FIELD_BYTES,
) -> FormData:
    kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind != b"multipart/form-data":
        raise InvalidRequest("Upload files as multipart/form-data.", code="invalid_content_type")
    parser = MultiPartParser(
        Headers(scope=scope),
        chunks,
        max_files=max_files,
        max_fields=_MAX_FIELDS,
        max_part_size=field_bytes,
    )
    try:
        async with aclosing(chunks):
            return await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(
            f"The form cannot be read: {error.message}", code="invalid_multipart"
        ) from None
    except (KeyError, ValueError):  # errors that the parser lets through
        raise InvalidRequest("The form cannot be read.", code="invalid_multipart") from None

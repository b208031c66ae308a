"""Forms with files (``multipart/form-data``), read up to a limit. It does not know what the
fields mean.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from msgspec import Struct
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Receive, Scope

from antiphon.errors import InvalidRequest
from antiphon.http.middleware.request_context import header
from antiphon.wire.parsing.errors import missing

from . import body as bodies

__all__ = ["Form", "Forms", "read", "read_all"]

#: Beside the file: fields, their bytes each, and room for all that stands around them.
_MOST_FIELDS, _FIELD_BYTES, _AROUND = 16, 4096, 64 * 2**10
#: Around each of several files.
_AROUND_FILE = 2048
_NAME_LENGTH = 255


class Form(Struct, frozen=True):
    """A file, what it is called (without folders), and the fields beside it."""

    filename: str
    content: bytes
    fields: Mapping[str, str]


class Forms(Struct, frozen=True):
    """Files with the paths they were sent under, and the fields beside them."""

    files: tuple[tuple[str, bytes], ...]
    fields: Mapping[str, str]


async def read(scope: Scope, receive: Receive, *, file: str, limit: int) -> Form:
    """The form. ``file``: the field that holds the file; ``limit``: its bytes. What is large is
    held on disk until it is whole. Raises ``InvalidRequest``, ``TooLarge``, ``ClientLeft``."""
    form = await _parsed(scope, bodies.pieces(scope, receive, limit + _AROUND))
    try:
        found = form.get(file)
        if not isinstance(found, UploadFile):
            raise missing(file)
        if found.size is not None and found.size > limit:
            raise bodies.too_large(limit)
        content = await found.read()
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        return Form(_called(found.filename or ""), content, fields)
    finally:
        await form.close()


async def read_all(scope: Scope, receive: Receive, *, file: str, limit: int, most: int) -> Forms:
    """The form with all its files, at most ``most``; ``limit``: bytes of all. The field is called
    ``file``, with or without brackets. Raises likewise."""
    room = limit + most * _AROUND_FILE + _AROUND
    form = await _parsed(scope, bodies.pieces(scope, receive, room), most)
    try:
        given = [(name, each) for name, each in form.multi_items() if isinstance(each, UploadFile)]
        files = [each for name, each in given if name.partition("[")[0] == file]
        if not files:
            raise missing(file)
        if sum(each.size or 0 for each in files) > limit:
            raise bodies.too_large(limit)
        found = tuple([(each.filename or "file", await each.read()) for each in files])
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        return Forms(found, fields)
    finally:
        await form.close()


async def _parsed(scope: Scope, pieces: AsyncGenerator[bytes, None], most: int = 1) -> FormData:
    kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind != b"multipart/form-data":
        raise InvalidRequest(
            "A file is uploaded as multipart/form-data.", code="invalid_content_type"
        )
    parser = MultiPartParser(
        Headers(scope=scope),
        pieces,
        max_files=most,
        max_fields=_MOST_FIELDS,
        max_part_size=_FIELD_BYTES,
    )
    try:
        async with aclosing(pieces):
            return await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(
            f"The form cannot be read: {error.message}", code="invalid_multipart"
        ) from None
    except (KeyError, ValueError):  # what the parser does not translate
        raise InvalidRequest("The form cannot be read.", code="invalid_multipart") from None


def _called(filename: str) -> str:
    """A name that is a name: no folders, no control characters, no half characters."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    name = "".join(char for char in name if char.isprintable() or char == " ")
    return name.encode("utf-8", "ignore").decode()[-_NAME_LENGTH:] or "file"

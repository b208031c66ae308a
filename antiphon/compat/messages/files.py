"""Files of Anthropic's API, translated from files of OpenAI's API.

The fields follow the types of the ``anthropic`` SDK 2.14.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from antiphon.wire.pagination import DeletedObject, Page
from antiphon.wire.parsing.fields import convert
from antiphon.wire.parsing.text_fields import read_texts
from antiphon.wire.parsing.upload_form import UploadFields
from antiphon.wire.resources.files import File, FileExpiresAfter

from .types import rfc3339

_EXPIRY_SECONDS = (3600, 7_776_000)  # an hour, 90 days: Anthropic's bounds
_PAGE = "page_"
PageToken = Annotated[
    str | None,
    Meta(description="For clients of Anthropic's API: the `next_page` of the page before."),
]


class MessageFile(Struct, frozen=True, kw_only=True):
    """A stored file. ``mime_type`` follows from the ending of its name. Times have the form of RFC
    3339."""

    id: str
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str | None
    downloadable: bool = True
    type: Literal["file"] = "file"

    @classmethod
    def of(cls, file: File) -> MessageFile:
        return cls(
            id=file.id,
            filename=file.filename,
            mime_type=mimetypes.guess_type(file.filename)[0] or "application/octet-stream",
            size_bytes=file.bytes,
            created_at=rfc3339(file.created_at),
            expires_at=None if file.expires_at is UNSET else rfc3339(file.expires_at),
        )


class MessageFilePage(Struct, frozen=True, kw_only=True):
    """A page of files. ``next_page``: the value of ``page`` for the request of the next page."""

    data: tuple[MessageFile, ...]
    next_page: str | None = None


class DeletedMessageFile(Struct, frozen=True):
    id: str
    type: Literal["file_deleted"] = "file_deleted"

    @classmethod
    def of(cls, deleted: DeletedObject) -> DeletedMessageFile:
        return cls(deleted.id)


def next_page(page: Page[Any]) -> str | None:
    """Return the value of ``page`` with which a client gets the next page."""
    return f"{_PAGE}{page.last_id}" if page.has_more else None


def page_cursor(page: str | None) -> str | None:
    """Return the id after which a page begins. ``page``: a value of ``next_page``."""
    return None if page is None else page.removeprefix(_PAGE)


class _UploadForm(Struct, frozen=True):
    expires_in_seconds: (
        Annotated[int, Meta(ge=_EXPIRY_SECONDS[0], le=_EXPIRY_SECONDS[1])] | None
    ) = None


def parse_message_upload(form: Mapping[str, str]) -> UploadFields:
    """Parse the form fields of an upload besides its file. Raises ``InvalidRequest``."""
    seconds = convert(read_texts(form.items(), _UploadForm), _UploadForm, "").expires_in_seconds
    expiry = None if seconds is None else FileExpiresAfter(anchor="created_at", seconds=seconds)
    return UploadFields("user_data", expiry)

"""Files as the API shows them.

Source of the fields: the types of the ``openai`` SDK, version 3.52.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

__all__ = ["PURPOSES", "ChunkedUpload", "ChunkedUploadPart", "File", "FileExpiresAfter", "Purpose"]

#: Purposes that clients may give for an upload.
Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


class File(Struct, frozen=True, kw_only=True):
    """A stored file without its content. Times are unix seconds.

    ``status`` is deprecated in the API. It is always ``processed``, because files are not checked
    after the upload.
    """

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    expires_at: int | UnsetType = UNSET


#: Seconds until a file expires: from an hour to 30 days, OpenAI's bounds.
ExpirySeconds = Annotated[int, Meta(ge=3_600, le=2_592_000)]


class FileExpiresAfter(Struct, frozen=True, kw_only=True):
    """When a file expires: ``seconds`` after its creation."""

    anchor: Literal["created_at"]
    seconds: ExpirySeconds


class ChunkedUpload(Struct, frozen=True, kw_only=True):
    """A file that is uploaded in parts. ``bytes``: the size that the client announced."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled"] = "pending"
    file: File | None = None


class ChunkedUploadPart(Struct, frozen=True, kw_only=True):
    """One part of an upload, as the API shows it. An upload is a file that the client sends in
    several parts. The bytes of the part are not shown."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str

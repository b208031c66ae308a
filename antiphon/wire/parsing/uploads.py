"""Parse the bodies of requests about files that are uploaded in parts."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from antiphon.wire.resources.files import FileExpiresAfter

from .errors import invalid_value, pattern_mismatch
from .fields import body_parser
from .json_body import DEFAULT_LIMITS, BodyLimits
from .upload_form import check_purpose, safe_filename

#: Maximum number of parts of one upload.
MAX_PARTS = 10_000
_MD5 = "^[0-9a-fA-F]{32}$"
_Id = Annotated[str, Meta(max_length=128)]


class CreateUpload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /uploads``. ``bytes``: the size of the whole file."""

    bytes: Annotated[int, Meta(ge=1)]
    filename: Annotated[str, Meta(min_length=1)]
    mime_type: Annotated[str, Meta(min_length=1, max_length=256)]
    purpose: str
    expires_after: FileExpiresAfter | None = None


class CompleteUpload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /uploads/{id}/complete``. ``part_ids``: ids of the parts, in the order of
    the content."""

    part_ids: Annotated[tuple[_Id, ...], Meta(min_length=1, max_length=MAX_PARTS)]
    md5: str | None = None


def parse_create(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> CreateUpload:
    """Parse the body of ``POST /uploads``. Raises ``InvalidRequest``."""
    parsed = body_parser(CreateUpload, refuses_unknown=True)(body, limits)
    check_purpose(parsed.purpose)
    return CreateUpload(
        bytes=parsed.bytes,
        filename=safe_filename(parsed.filename),
        mime_type=parsed.mime_type,
        purpose=parsed.purpose,
        expires_after=parsed.expires_after,
    )


def parse_complete(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> CompleteUpload:
    """Parse the body of ``POST /uploads/{id}/complete``. Raises ``InvalidRequest``."""
    parsed = body_parser(CompleteUpload, refuses_unknown=True)(body, limits)
    if parsed.md5 is not None and not re.fullmatch(_MD5, parsed.md5):
        raise pattern_mismatch("md5", _MD5)
    seen: set[str] = set()
    for at, part_id in enumerate(parsed.part_ids):
        if part_id in seen:
            raise invalid_value(f"part_ids[{at}]", part_id)
        seen.add(part_id)
    return parsed

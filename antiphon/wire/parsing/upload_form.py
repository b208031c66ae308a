"""Parse the form fields of a file upload."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from antiphon.wire.resources.files import PURPOSES, FileExpiresAfter, Purpose

from .errors import invalid_type, invalid_value, missing_parameter, out_of_range

_NAME_LENGTH = 255
_EXPIRY_SECONDS = (3600, 2_592_000)  # an hour, 30 days: OpenAI's bounds


class UploadForm(Struct, frozen=True, kw_only=True):
    """The form fields of ``POST /files`` besides the file. The fields have the names that clients
    send, such as ``expires_after[seconds]``. Clients of the Messages API send only
    ``expires_in_seconds``. Only the OpenAPI document uses this type;
    ``UploadFields`` holds the parsed fields."""

    purpose: Purpose
    anchor: Literal["created_at"] | UnsetType = field(name="expires_after[anchor]", default=UNSET)
    seconds: Annotated[int, Meta(ge=_EXPIRY_SECONDS[0], le=_EXPIRY_SECONDS[1])] | UnsetType = field(
        name="expires_after[seconds]", default=UNSET
    )
    expires_in_seconds: int | UnsetType = UNSET


class UploadFields(Struct, frozen=True):
    """The parsed form fields of ``POST /files`` besides the file."""

    purpose: str
    expires_after: FileExpiresAfter | None


def parse_upload_form(form: Mapping[str, str]) -> UploadFields:
    """Parse the form fields. A nested field has a name such as ``expires_after[seconds]``. Raises
    ``InvalidRequest``."""
    return UploadFields(check_purpose(form.get("purpose")), _expires_after(form))


def safe_filename(filename: str) -> str:
    """Return a filename without folders, control characters and lone surrogates."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    name = "".join(char for char in name if char.isprintable() or char == " ")
    return name.encode("utf-8", "ignore").decode()[-_NAME_LENGTH:] or "file"


def check_purpose(purpose: str | None) -> str:
    """Return ``purpose``, the purpose of a file. Raises ``InvalidRequest`` if the purpose is
    missing, or if clients may not set this purpose."""
    if not purpose:
        raise missing_parameter("purpose")
    if purpose not in PURPOSES:
        raise invalid_value("purpose", purpose, PURPOSES)
    return purpose


def check_expiry_seconds(seconds: int) -> int:
    """Return ``seconds``, the time until a file expires. Raises ``InvalidRequest`` if the time is
    outside OpenAI's bounds."""
    least, most = _EXPIRY_SECONDS
    if not least <= seconds <= most:
        sign, bound = (">=", least) if seconds < least else ("<=", most)
        raise out_of_range("expires_after.seconds", "integer", seconds, sign, str(bound))
    return seconds


def _expires_after(form: Mapping[str, str]) -> FileExpiresAfter | None:
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor is None:
        raise missing_parameter("expires_after.anchor")
    if seconds is None:
        raise missing_parameter("expires_after.seconds")
    if anchor != "created_at":
        raise invalid_value("expires_after.anchor", anchor, ("created_at",))
    if not re.fullmatch(r"-?[0-9]{1,18}", seconds):
        raise invalid_type("expires_after.seconds", "an integer", "a string")
    return FileExpiresAfter(anchor="created_at", seconds=check_expiry_seconds(int(seconds)))

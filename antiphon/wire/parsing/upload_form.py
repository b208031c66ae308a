"""Parse the form fields of a file upload."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from antiphon.wire.json_types import JsonObject
from antiphon.wire.resources.files import PURPOSES, ExpirySeconds, FileExpiresAfter, Purpose

from .errors import invalid_value, missing_parameter
from .fields import convert, require

_NAME_LENGTH = 255


class UploadForm(Struct, frozen=True, kw_only=True):
    """The form fields of ``POST /files`` besides the file. The fields have the names that clients
    send, such as ``expires_after[seconds]``. Clients of the Messages API send only
    ``expires_in_seconds``. Only the OpenAPI document uses this type;
    ``UploadFields`` holds the parsed fields."""

    purpose: Purpose
    anchor: Literal["created_at"] | UnsetType = field(name="expires_after[anchor]", default=UNSET)
    seconds: ExpirySeconds | UnsetType = field(name="expires_after[seconds]", default=UNSET)
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


def _expires_after(form: Mapping[str, str]) -> FileExpiresAfter | None:
    names = {"anchor": "expires_after[anchor]", "seconds": "expires_after[seconds]"}
    given: JsonObject = {name: form[key] for name, key in names.items() if key in form}
    if not given:
        return None
    require(given, "expires_after", *names)
    if re.fullmatch(r"-?[0-9]{1,18}", given["seconds"]):
        given["seconds"] = int(given["seconds"])
    return convert(given, FileExpiresAfter, "expires_after")

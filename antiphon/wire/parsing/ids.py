"""Check ids in requests, with errors in OpenAI's wording.

Only ids that must refer to objects of this server are checked. Clients also send items that other
servers made. The ids of such items refer to nothing here and may have any form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from antiphon.errors import InvalidRequest, invalid_field

from .errors import too_long_error, truncated

_MAX_ID_CHARS = 64
_ALLOWED = re.compile(r"[A-Za-z0-9_-]+")

#: Path parameter → type of its value. Only the ids that are checked have an entry.
ID_TYPES: Mapping[str, Any] = {
    f"{name}_id": Annotated[
        str, Meta(pattern=f"^{prefix}[A-Za-z0-9_-]*$", max_length=_MAX_ID_CHARS)
    ]
    for name, prefix in (("response", "resp"), ("conversation", "conv"))
}


def check_response_id(value: str, path: str) -> str:
    """Return a response id unchanged. Raises ``InvalidRequest`` for an id that no response can
    have."""
    return _check_id(value, path, "resp")


def check_conversation_id(value: str, path: str) -> str:
    """Return a conversation id unchanged. Raises ``InvalidRequest`` for an id that no conversation
    can have."""
    return _check_id(value, path, "conv")


def _check_id(value: str, path: str, prefix: str) -> str:
    if len(value) > _MAX_ID_CHARS:
        raise too_long_error(path, len(value), _MAX_ID_CHARS)
    if not _ALLOWED.fullmatch(value):
        raise _invalid_id(
            path,
            value,
            "contains letters, numbers, underscores, or dashes, but this value contained"
            " additional characters",
        )
    if not value.startswith(prefix):
        raise _invalid_id(path, value, f"begins with '{prefix}'")
    return value


def _invalid_id(path: str, value: str, expected: str) -> InvalidRequest:
    return invalid_field(path, f"'{truncated(value)}'. Expected an ID that {expected}.")

"""Files as the API lists them. Field lists: the ``openai`` SDK's types, 3.52."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

__all__ = ["PURPOSES", "File", "FileExpiresAfter"]

#: What clients may upload a file for.
PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")


class File(Struct, frozen=True, kw_only=True):
    """A kept file without its content. Times are unix seconds. ``status`` is deprecated in the API
    and always the same: nothing is checked behind a client's back."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    expires_at: int | UnsetType = UNSET


class FileExpiresAfter(Struct, frozen=True, kw_only=True):
    """How long a file is kept: ``seconds`` after it was made."""

    anchor: Literal["created_at"]
    seconds: int

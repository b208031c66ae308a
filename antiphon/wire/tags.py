"""The type names of wire objects: the values of the field ``type`` in their JSON."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["tag_of"]


def tag_of(cls: type[Struct]) -> str:
    """Return the value of the field ``type`` in the JSON of a class's instances."""
    return str(cls.__struct_config__.tag)

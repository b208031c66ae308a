"""Encode ``multipart/form-data`` (RFC 7578) as OpenAI's clients encode it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from msgspec import Struct

#: Characters that would end the name of a file, as browsers escape them.
_ESCAPED = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})


class FormFile(Struct, frozen=True, kw_only=True):
    """A file of a form. ``field``: the name of its field. ``filename`` may come from a client."""

    field: str
    filename: str
    media_type: str
    content: bytes


def encode_form(fields: Mapping[str, object], files: Iterable[FormFile]) -> tuple[str, bytes]:
    """Return the content type and the body of a form. An object becomes one field for each of its
    values, named ``field[key]``, and an array repeats the field ``field[]``."""
    parts = [
        (f'name="{name}"', "", text.encode())
        for field, value in fields.items()
        for name, text in _flatten(field, value)
    ]
    parts += [
        (
            f'name="{file.field}"; filename="{file.filename.translate(_ESCAPED)}"',
            f"Content-Type: {file.media_type}\r\n",
            file.content,
        )
        for file in files
    ]
    boundary = secrets.token_hex(32)
    pieces: list[bytes] = []
    for head, kind, content in parts:
        start = f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n{kind}\r\n"
        pieces += (start.encode(), content, b"\r\n")
    pieces.append(f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", b"".join(pieces)


def _flatten(name: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [
            pair
            for key, inner in value.items()
            if inner is not None
            for pair in _flatten(f"{name}[{key}]", inner)
        ]
    if isinstance(value, list | tuple):
        return [pair for inner in value for pair in _flatten(f"{name}[]", inner)]
    if isinstance(value, bool):
        return [(name, "true" if value else "false")]
    return [(name, str(value))]

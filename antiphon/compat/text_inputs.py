"""Read the inputs of the Completions and the Embeddings API: texts, or the token ids of texts."""

from __future__ import annotations

import sys
from typing import Any

from antiphon.wire.parsing.errors import empty_value, invalid_type, json_type_name
from antiphon.wire.parsing.fields import read_array

#: A text, or its token ids.
TextInput = str | tuple[int, ...]


def read_text_inputs(raw: object, path: str, limit: int) -> dict[str, TextInput]:
    """Read one input, or an array of up to ``limit`` inputs. Returns a dict from the path of each
    input to the input, in the order of the request.

    If the first entry of an array is a number, the array contains the token ids of a single text.
    Raises ``InvalidRequest`` for other types and for an empty array. An empty text is allowed.
    """
    if isinstance(raw, str):
        return {path: raw}
    entries = read_array(raw, path, sys.maxsize, "a string or an array")
    if not entries:
        raise empty_value(path, entries)
    if isinstance(entries[0], int):
        return {path: _token_ids(entries, path)}
    read_array(raw, path, limit)
    paths = (f"{path}[{index}]" for index in range(len(entries)))
    return {path: _text_or_ids(entry, path) for path, entry in zip(paths, entries, strict=True)}


def _text_or_ids(raw: object, path: str) -> TextInput:
    if isinstance(raw, list):
        return _token_ids(raw, path)
    if not isinstance(raw, str):
        raise invalid_type(path, "a string or an array of token ids", json_type_name(raw))
    return raw


def _token_ids(raw: list[Any], path: str) -> tuple[int, ...]:
    if not raw:
        raise empty_value(path, raw)
    for index, id in enumerate(raw):
        if isinstance(id, bool) or not isinstance(id, int):
            raise invalid_type(f"{path}[{index}]", "a token id", json_type_name(id))
    return tuple(raw)

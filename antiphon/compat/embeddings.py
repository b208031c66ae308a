"""``POST /embeddings``: what is asked, and how vectors become the answer.

Field lists: the ``openai`` SDK's types, 3.54; ``input_type`` is an extension that servers of models
with roles share.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.errors import bad_type, empty, kind_of, missing
from antiphon.wire.parsing.fields import Json, array, converted
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, Limits, parse
from antiphon.wire.parsing.unsupported_fields import refuse_foreign

__all__ = ["AskedEmbeddings", "EmbeddingList", "embedding_list", "embeddings_request"]

#: Texts of one request: OpenAI's limit.
_MAX_TEXTS = 2048
_MAX_ID = 2**31 - 1


class AskedEmbeddings(Struct, frozen=True, kw_only=True):
    """``input``: texts, or the token ids of texts. ``input_type``: what the texts are for, where a
    model was trained to tell."""

    input: tuple[str | tuple[int, ...], ...]
    model: Annotated[str, Meta(max_length=256)] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Literal["query", "passage", "document"] = "query"
    user: str | None = None


def embeddings_request(body: bytes, limits: Limits = DEFAULT_LIMITS) -> AskedEmbeddings:
    """The body of the request. Raises ``InvalidRequest``."""
    raw = parse(body, limits)
    if "input" not in raw:
        raise missing("input")
    refuse_foreign(raw)
    fields = {**raw, "input": _texts(raw["input"])}
    return converted(fields, AskedEmbeddings, "")


def _texts(raw: Any) -> tuple[str | tuple[int, ...], ...]:
    """One text or several, each as a text or as token ids."""
    if isinstance(raw, str):
        return (_text(raw, "input"),)
    entries = array(raw, "input", sys.maxsize, "a string or an array")
    if not entries:
        raise empty("input", entries)
    if isinstance(entries[0], int):
        return (_ids(entries, "input"),)
    array(raw, "input", _MAX_TEXTS)
    return tuple(_text(entry, f"input[{index}]") for index, entry in enumerate(entries))


def _text(raw: Any, path: str) -> str | tuple[int, ...]:
    if isinstance(raw, list):
        return _ids(raw, path)
    if not isinstance(raw, str):
        raise bad_type(path, "a string or an array of token ids", kind_of(raw))
    if not raw:
        raise empty(path, raw)
    return raw


def _ids(raw: list[Any], path: str) -> tuple[int, ...]:
    if not raw:
        raise empty(path, raw)
    for index, id in enumerate(raw):
        if isinstance(id, bool) or not isinstance(id, int):
            raise bad_type(f"{path}[{index}]", "a token id", kind_of(id))
        if not 0 <= id <= _MAX_ID:
            raise InvalidRequest(
                f"Invalid '{path}[{index}]': there is no such token.",
                param=f"{path}[{index}]",
                code="invalid_value",
            )
    return tuple(raw)


class EmbeddingList(Struct, frozen=True, kw_only=True):
    """The answer. Every entry is ``{object, index, embedding}``."""

    model: str
    data: tuple[Json, ...]
    usage: Json
    object: Literal["list"] = "list"


def embedding_list(
    asked: AskedEmbeddings, model: str, vectors: Sequence[Any], tokens: int
) -> EmbeddingList:
    """``vectors``: arrays of 32-bit floats, in order."""
    encoded = _base64 if asked.encoding_format == "base64" else list
    return EmbeddingList(
        model=model,
        data=tuple(
            {"object": "embedding", "index": index, "embedding": encoded(vector)}
            for index, vector in enumerate(vectors)
        ),
        usage={"prompt_tokens": tokens, "total_tokens": tokens},
    )


def _base64(vector: Any) -> str:
    """Little-endian, as OpenAI's clients read it."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()

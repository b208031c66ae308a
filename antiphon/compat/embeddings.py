"""Parse the body of ``POST /embeddings`` and encode the answer.

The fields follow the types of the ``openai`` SDK 3.54. ``input_type`` is an extension that several
servers share, because some models embed queries and passages differently.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.errors import invalid_field
from antiphon.wire.parsing.errors import empty_value
from antiphon.wire.parsing.fields import convert, require
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.parsing.unsupported_fields import refuse_unsupported_fields

from .text_inputs import TextInput, read_text_inputs

#: Maximum number of texts in a request. This is OpenAI's limit.
_MAX_TEXTS = 2048
#: Engines store token ids in 32 bits.
_MAX_TOKEN_ID = 2**31 - 1


class EmbeddingsRequest(Struct, frozen=True, kw_only=True):
    """An Embeddings request. ``input``: texts, or their token ids. ``input_type``: the role of the
    texts, such as query or passage. Only some models use it."""

    input: tuple[TextInput, ...]
    model: Annotated[str, Meta(max_length=256)] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Literal["query", "passage", "document"] = "query"
    user: str | None = None


def parse_embeddings_request(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> EmbeddingsRequest:
    """Parse a request body. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits)
    require(raw, "", "input")
    refuse_unsupported_fields(raw)
    texts = read_text_inputs(raw["input"], "input", _MAX_TEXTS)
    for path, text in texts.items():
        _check_text(text, path)
    return convert({**raw, "input": tuple(texts.values())}, EmbeddingsRequest, "")


def _check_text(text: TextInput, path: str) -> None:
    """Raise ``InvalidRequest`` for an empty text, and for token ids that are not from 0 to
    ``_MAX_TOKEN_ID``."""
    if not text:
        raise empty_value(path, text)
    if isinstance(text, str):
        return
    for index, id in enumerate(text):
        if not 0 <= id <= _MAX_TOKEN_ID:
            raise invalid_field(
                f"{path}[{index}]", f"a token id is a number from 0 to {_MAX_TOKEN_ID}."
            )


class EmbeddingObject(Struct, frozen=True, kw_only=True):
    """``embedding``: numbers, or their bytes in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: Sequence[float] | str


class EmbeddingUsage(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, frozen=True, kw_only=True):
    """The answer to an Embeddings request."""

    model: str
    data: tuple[EmbeddingObject, ...]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


def make_embedding_list(
    request: EmbeddingsRequest, model: str, vectors: Sequence[Any], tokens: int
) -> EmbeddingList:
    """Build the answer. ``vectors``: one array of 32-bit floats per input, in the order of the
    inputs. ``tokens``: number of input tokens."""
    encoded = _base64 if request.encoding_format == "base64" else list
    return EmbeddingList(
        model=model,
        data=tuple(
            EmbeddingObject(index=index, embedding=encoded(vector))
            for index, vector in enumerate(vectors)
        ),
        usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


def _base64(vector: Any) -> str:
    """Encode 32-bit floats in base64, in little-endian order, as OpenAI's clients expect."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()

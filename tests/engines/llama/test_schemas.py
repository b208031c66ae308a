"""A public collection of schemas: what is accepted is obeyed, what is refused is named."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import pytest

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.dialects.grammar.json_schema import is_enforced, llguidance_schema
from antiphon.engines.llama.engine import LlamaEngine
from antiphon.errors import InvalidRequest
from bench.schemas import answer, collection, obeys

_PATH = "text.format.schema"
_NAMED = re.compile(
    r"keyword '|oneOf|[Ff]ormat|pattern|regex|[Rr]eference|Resource|schema|type|enum"
)


def _is_whole(schema: dict[str, Any]) -> bool:
    try:
        return is_enforced(llguidance_schema(schema), _PATH, strict=True)
    except InvalidRequest:
        return False


def _refusal(schema: dict[str, Any]) -> InvalidRequest | None:
    try:
        is_enforced(llguidance_schema(schema), _PATH, strict=False)
    except InvalidRequest as refused:
        return refused
    return None


@pytest.mark.e2e
@pytest.mark.requirement("VN-43")
def test_schema_is_accepted_or_refused_with_the_reason() -> None:
    every = list(collection().values())[::8]
    refusals = [refused for schema in every if (refused := _refusal(schema)) is not None]
    assert 0 < len(refusals) / len(every) < 0.3
    for refused in refusals:
        assert refused.param == "text.format.schema" and refused.code == "invalid_json_schema"
        why = refused.message.removeprefix("Invalid schema: ")
        assert _NAMED.search(why) and len(why) < 300, why


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_output_of_a_small_model_matches_the_schemas(llama: LlamaEngine) -> None:
    backend = LocalBackend(llama, ChatDialect(llama.card, llama.tokenizer))
    small = sorted(collection().values(), key=lambda schema: len(json.dumps(schema)))
    enforced = list(islice(filter(_is_whole, small), 3))
    answers = [await answer(backend, schema, most=150) for schema in enforced]
    whole = [(schema, text) for schema, text in zip(enforced, answers, strict=True) if text]
    assert whole and all(obeys(schema, text) for schema, text in whole)

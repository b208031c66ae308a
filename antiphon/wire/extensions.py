"""What requests may say beyond OpenAI's fields, in the words of vLLM and transformers: guides of
the answer, and sampling under other names. Values and their readers; no policy.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.errors import bad_type, kind_of, shortened
from antiphon.wire.parsing.fields import converted, fields_of

__all__ = ["Guide", "StructuredOutputs", "read_generation", "read_guides"]

Json = dict[str, Any]


class Guide(Struct, frozen=True, kw_only=True):
    """A grammar that the whole answer obeys. ``path``: where the request gives it."""

    syntax: Literal["lark", "regex"]
    definition: str
    path: str


class StructuredOutputs(Struct, frozen=True, kw_only=True):
    """``structured_outputs``, as vLLM has it: exactly one of these. ``grammar`` is Lark, in the
    dialect of llguidance."""

    json: Json | str | None = None
    regex: str | None = None
    choice: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1000)] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    @property
    def guide(self) -> Guide | None:
        """What is no matter of JSON."""
        path = "structured_outputs"
        if self.regex is not None:
            return Guide(syntax="regex", definition=self.regex, path=f"{path}.regex")
        if self.choice is not None:
            arms = " | ".join(json.dumps(text, ensure_ascii=False) for text in self.choice)
            return Guide(syntax="lark", definition=f"start: {arms}", path=f"{path}.choice")
        if self.grammar is not None:
            return Guide(syntax="lark", definition=self.grammar, path=f"{path}.grammar")
        return None

    @property
    def schema(self) -> Json | None:
        """The schema of JSON, if that is what is asked for."""
        if self.json_object:
            return {"type": "object"}
        return self.json if isinstance(self.json, dict) else None


def read_guides(raw: Any, path: str) -> StructuredOutputs:
    """Raises ``InvalidRequest``."""
    fields = fields_of(raw, path)
    _known(fields, StructuredOutputs.__struct_fields__, path)
    read = converted(fields, StructuredOutputs, path)
    given = [name for name in read.__struct_fields__ if getattr(read, name) not in (None, False)]
    if len(given) != 1:
        one_of = ", ".join(f"'{name}'" for name in read.__struct_fields__)
        raise InvalidRequest(
            f"Invalid '{path}': give exactly one of {one_of}.", param=path, code="invalid_value"
        )
    if isinstance(read.json, str):
        schema = _parsed(read.json, f"{path}.json")
        read = StructuredOutputs(json=fields_of(schema, f"{path}.json"))
    return read


#: What transformers calls a value → the field that says it here.
_GENERATION: Mapping[str, str] = {
    "max_new_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "seed": "seed",
    "stop_strings": "stop",
}


def read_generation(raw: Any, path: str) -> Json:
    """``generation_config`` of transformers serve, an object or its JSON text, as fields of the
    request. Raises ``InvalidRequest`` for what has no counterpart."""
    fields = fields_of(_parsed(raw, path) if isinstance(raw, str) else raw, path)
    sampled = fields.pop("do_sample", True)
    _known(fields, _GENERATION, path)
    said = {_GENERATION[name]: value for name, value in fields.items() if value is not None}
    return said if sampled else {**said, "temperature": 0}


def _known(fields: Json, names: Collection[str], path: str) -> None:
    for name in fields:
        if name not in names:
            where = f"{path}.{shortened(name)}"
            raise InvalidRequest(
                f"Unsupported parameter: '{where}' is not supported by this server.",
                param=where,
                code="unsupported_parameter",
            )


def _parsed(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise bad_type(path, "an object, or one as JSON text", kind_of(text)) from None

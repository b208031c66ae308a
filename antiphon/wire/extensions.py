"""Request fields that OpenAI's API lacks, with the names of vLLM and transformers: types and
parsers.

``structured_outputs`` constrains the whole answer. ``generation_config`` holds sampling options
under the names of transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.errors import InvalidRequest, invalid_field, unsupported_parameter
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import invalid_type, json_type_name, truncated
from antiphon.wire.parsing.fields import convert, read_object
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, parse_json_object

__all__ = ["Guide", "StructuredOutputs", "read_generation_config", "read_structured_outputs"]

#: A rule of EBNF or GBNF, at the beginning of a line. Lark writes ":" instead of "::=".
_EBNF_RULE = re.compile(r"(?m)^[ \t]*[A-Za-z_][A-Za-z0-9_-]*[ \t]*::=")


class Guide(Struct, frozen=True, kw_only=True):
    """A grammar that the whole answer must match.

    ``path``: path of the request field that contains the grammar. With the syntax ``ebnf``,
    ``definition`` is a grammar in the form that xgrammar and llama.cpp read. With the syntax
    ``structural_tag``, ``definition`` is JSON in xgrammar's format.
    """

    syntax: Literal["lark", "ebnf", "regex", "structural_tag"]
    definition: str
    path: str


class StructuredOutputs(Struct, frozen=True, kw_only=True):
    """vLLM's field ``structured_outputs``. Exactly one of its constraints is set.

    ``grammar`` is in llguidance's dialect of Lark, or in EBNF. ``structural_tag`` is JSON in
    xgrammar's format.
    """

    json: JsonObject | str | None = None
    regex: str | None = None
    choice: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1000)] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: JsonObject | str | None = None

    @property
    def guide(self) -> Guide | None:
        """The constraint that is set, as a grammar. None if the field ``json`` or ``json_object``
        is set: ``schema`` then returns the constraint."""
        path = "structured_outputs"
        if self.regex is not None:
            return Guide(syntax="regex", definition=self.regex, path=f"{path}.regex")
        if self.choice is not None:
            arms = " | ".join(json.dumps(text, ensure_ascii=False) for text in self.choice)
            return Guide(syntax="lark", definition=f"start: {arms}", path=f"{path}.choice")
        if self.grammar is not None:
            is_ebnf = _EBNF_RULE.search(self.grammar) is not None
            return Guide(
                syntax="ebnf" if is_ebnf else "lark",
                definition=self.grammar,
                path=f"{path}.grammar",
            )
        if self.structural_tag is not None:
            definition = json.dumps(self.structural_tag)
            return Guide(
                syntax="structural_tag", definition=definition, path=f"{path}.structural_tag"
            )
        return None

    @property
    def schema(self) -> JsonObject | None:
        """The JSON schema of the constraint that is set. None if this constraint is a grammar."""
        if self.json_object:
            return {"type": "object"}
        return self.json if isinstance(self.json, dict) else None


def read_structured_outputs(raw: object, path: str) -> StructuredOutputs:
    """Read ``structured_outputs``. Raises ``InvalidRequest``."""
    fields = read_object(raw, path)
    _refuse_unknown(fields, StructuredOutputs.__struct_fields__, path)
    read = convert(fields, StructuredOutputs, path)
    names_set = [
        name for name in read.__struct_fields__ if getattr(read, name) not in (None, False)
    ]
    if len(names_set) != 1:
        one_of = ", ".join(f"'{name}'" for name in read.__struct_fields__)
        raise invalid_field(path, f"give exactly one of {one_of}.")
    if isinstance(read.json, str):
        read = StructuredOutputs(json=_parse_object(read.json, f"{path}.json"))
    if isinstance(read.structural_tag, str):
        tag = _parse_object(read.structural_tag, f"{path}.structural_tag")
        read = StructuredOutputs(structural_tag=tag)
    return read


#: Field of ``generation_config`` → our request field.
_GENERATION_FIELDS: Mapping[str, str] = {
    "max_new_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "seed": "seed",
    "stop_strings": "stop",
}
#: Fields that describe the model or the file, and do not change how it generates.
_DESCRIPTIVE_FIELDS = frozenset(
    {
        "_from_model_config",
        "bos_token_id",
        "cache_implementation",
        "compile_config",
        "disable_compile",
        "eos_token_id",
        "pad_token_id",
        "return_dict_in_generate",
        "transformers_version",
        "use_cache",
    }
)
#: Other fields of ``GenerationConfig`` → the value that has no effect. In these fields, null and
#: false have no effect either.
_NEUTRAL_VALUES: Mapping[str, Any] = {
    "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10,
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "generation_kwargs": {},
    "guidance_scale": 1.0,
    "length_penalty": 1.0,
    "max_length": 20,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "num_beam_groups": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "target_lookbehind": 10,
    "typical_p": 1.0,
}


def read_generation_config(raw: object, path: str) -> JsonObject:
    """Translate ``generation_config`` of ``transformers serve`` into request fields. ``raw`` is an
    object, or the JSON text of an object.

    If ``raw`` has ``transformers_version`` but no ``do_sample``, sampling is off. The reason:
    ``GenerationConfig.to_json_string`` always writes the version, and leaves out ``do_sample`` if
    it is false. Raises ``InvalidRequest`` for an option that has no corresponding request field.
    """
    fields = read_object(_parse_object(raw, path) if isinstance(raw, str) else raw, path)
    do_sample = fields.pop("do_sample", "transformers_version" not in fields)
    fields = {name: value for name, value in fields.items() if not _is_neutral(name, value)}
    _refuse_unknown(fields, _GENERATION_FIELDS, path)
    options = {
        _GENERATION_FIELDS[name]: value for name, value in fields.items() if value is not None
    }
    return options if do_sample else {**options, "temperature": 0}


def _is_neutral(name: str, value: object) -> bool:
    """Return whether the field ``name`` of ``generation_config`` has no effect with this value."""
    if name in _DESCRIPTIVE_FIELDS:
        return True
    if name in _GENERATION_FIELDS:
        return value is None
    if value is None or value is False:
        return True
    return name in _NEUTRAL_VALUES and _NEUTRAL_VALUES[name] == value


def _refuse_unknown(fields: JsonObject, names: Collection[str], path: str) -> None:
    for name in fields:
        if name not in names:
            where = f"{path}.{truncated(name)}"
            raise unsupported_parameter(where)


def _parse_object(text: str, path: str) -> JsonObject:
    try:
        return parse_json_object(text.encode(), DEFAULT_LIMITS, nulls=True)
    except InvalidRequest:
        raise invalid_type(
            path, "an object, or the JSON text of an object", json_type_name(text)
        ) from None

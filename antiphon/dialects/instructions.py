"""Instructions for the prompts of all models. They tell the model how long its answers should be,
which format the answer must have, and which functions belong to the same namespace. The module also
maps reasoning efforts to the levels that models know."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from antiphon.inference.conversation import Options
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .tools import namespace_notes

#: Reasoning effort → one of the levels ``low``, ``medium`` and ``high`` that models know.
LEVELS: Mapping[str, str] = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_SYNTAX_NAMES: Mapping[str, str] = {
    "ebnf": "EBNF grammar",
    "lark": "Lark grammar",
    "regex": "regular expression",
    "structural_tag": "structural tag of xgrammar",
}
_VERBOSITY: Mapping[str, str] = {
    "low": "Keep your answers short.",
    "high": "Answer at length and in detail.",
}


def json_format_instructions(options: Options) -> list[str]:
    """Return the instructions that describe the requested JSON. They are needed even if the engine
    enforces the JSON, because the model does not see the engine's grammar."""
    match options.text.format:
        case JsonSchemaFormat(schema=schema, description=description):
            about = f" {description}" if description else ""
            words = f"Answer with JSON that follows this schema.{about}\n"
            return [words + json.dumps(schema, ensure_ascii=False)]
        case JsonObjectFormat():
            return ["Answer with a JSON object."]
    return []


def format_instructions(options: Options, apart: Collection[str] = ()) -> list[str]:
    """Return the instructions for the verbosity, for the grammar that the answer must match, and
    for namespaces of tools. The instructions for JSON come from ``json_format_instructions``.

    ``apart``: names of the namespaces that the prompt declares elsewhere. They get no instructions.
    """
    lines: list[str] = []
    if options.tool_choice.mode != "none":
        lines += options.derive(namespace_notes, (options.tools,), frozenset(apart))
    if (guide := options.guide) is not None:
        what = _SYNTAX_NAMES[guide.syntax]
        lines.append(f"Answer with text that matches this {what}:\n{guide.definition}")
    if isinstance(options.text.verbosity, str) and options.text.verbosity in _VERBOSITY:
        lines.append(_VERBOSITY[options.text.verbosity])
    return lines

"""What efforts come to, and what is wished of an answer in words, for every model family."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from antiphon.conversation import Options
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .tools import namespace_notes

__all__ = ["LEVELS", "form_in_words", "format_instructions"]

#: Models know three levels of effort.
LEVELS: Mapping[str, str] = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_VERBOSITY: Mapping[str, str] = {
    "low": "Keep your answers short.",
    "high": "Answer at length and in detail.",
}


def form_in_words(options: Options) -> list[str]:
    """What a model is told of the JSON that it is to answer with, whatever holds it to that."""
    match options.text.format:
        case JsonSchemaFormat(schema=schema, description=description):
            about = f" {description}" if description else ""
            words = f"Answer with JSON that follows this schema.{about}\n"
            return [words + json.dumps(schema, ensure_ascii=False)]
        case JsonObjectFormat():
            return ["Answer with a JSON object."]
    return []


def format_instructions(options: Options, apart: Collection[str] = ()) -> list[str]:
    """What a model is told of the form of its answer, besides a format of JSON,
    and of the namespaces of its tools, but for those shown ``apart``."""
    said = [] if options.tool_choice.mode == "none" else namespace_notes(options.tools, apart)
    if (guide := options.guide) is not None:
        what = "regular expression" if guide.syntax == "regex" else "Lark grammar"
        said.append(f"Answer with text that matches this {what}:\n{guide.definition}")
    if isinstance(options.text.verbosity, str) and options.text.verbosity in _VERBOSITY:
        said.append(_VERBOSITY[options.text.verbosity])
    return said

"""Judges texts by a schema or a grammar, in a process of its own, and says what is wrong with each.

Run by its path. Schemas, grammars and texts are other people's, and can be made to take for ever:
here that is within bounds of time and memory, and nothing is fetched.
"""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["followed", "main"]

_MEMORY, _SECONDS, _FILES = 2 * 2**30, 10, 64
#: The validator goes down as deep as a value goes, on the stack.
_DEEPEST = 500
_LONGEST = 300
#: Of what the library allows itself: time and memory are bounded here.
_TIMES = 100


def main(schema: Any, text: str | None) -> dict[str, str]:
    """``{}``: it is right (a ``text`` of None always is); ``{"fault": …}``, or ``{"schema": …}``
    where the schema itself is."""
    import jsonschema_rs

    def made(form: Any) -> Any:
        return jsonschema_rs.validator_for(form, retriever=_refused, validate_formats=True)

    try:
        try:
            validator = made(schema)
        except jsonschema_rs.ValidationError:  # of an edition that nobody knows, perhaps
            validator = made({key: value for key, value in schema.items() if key != "$schema"})
    except (ValueError, jsonschema_rs.ReferencingError) as wrong:
        return {"schema": _first_line(wrong)}
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"fault": "it is no JSON."}
    if _depth(text) > _DEEPEST:
        return {"fault": "it is nested too deep."}
    error = next(validator.iter_errors(value), None)
    return {} if error is None else {"fault": _told(error)}


def followed(lark: str, text: str, whole: bool) -> dict[str, str]:
    """The same by a grammar in llguidance's Lark. Unless it is ``whole`` a text may go on."""
    import llguidance

    usual = llguidance.LLParserLimits()
    limits = llguidance.LLParserLimits(max_items_in_row=usual.max_items_in_row * _TIMES)
    grammar = llguidance.grammar_from("lark", lark)
    matcher = llguidance.LLMatcher(
        llguidance.LLTokenizer("byte"), grammar, log_level=0, limits=limits
    )
    ids = list(text.encode("utf-8", "replace"))
    if matcher.try_consume_tokens(ids) == len(ids) and (not whole or matcher.is_accepting()):
        return {}
    return {"fault": "it does not match the grammar."}


def _refused(uri: str) -> Any:
    raise ValueError(f"{uri} is not part of the schema")


def _depth(text: str) -> int:
    """How deep brackets are nested, those in strings included: an upper bound."""
    depth = deepest = 0
    for char in text:
        if char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest


def _told(error: Any) -> str:
    where = "".join(
        f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.instance_path
    )
    at = f"at {where.removeprefix('.')}: " if where else ""
    return f"{at}{_first_line(error)}"[:_LONGEST]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:_LONGEST]


def _bound() -> None:
    try:
        import resource
    except ImportError:  # not a Unix
        return
    for what, limit in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit))


if __name__ == "__main__":
    _bound()
    asked = json.load(sys.stdin)
    sys.stdout.write(json.dumps((followed if "lark" in asked else main)(**asked)))

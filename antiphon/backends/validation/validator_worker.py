"""Program that validates one text by a JSON schema or a grammar. Antiphon starts this file as a
script in a separate process.

It reads a request as JSON from standard input, and writes the result as JSON to standard output.
Schemas, grammars and texts come from clients, and a malicious client can make the validation take
very long. So this process has limits of time and memory. It does not fetch schemas from the
network.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from antiphon.ipc.worker_program import limit_program
from antiphon.support.text import nesting_depth

_MEMORY, _CPU_S, _OPEN_FILES = 2 * 2**30, 10, 64
#: Maximum nesting depth of a value. The validator recurses once per level and could overflow.
_MAX_DEPTH = 500
_MAX_MESSAGE = 300
#: Factor by which llguidance's own limit is raised, because this process has limits of time and
#: memory.
_LIMIT_FACTOR = 100


def validate_json(schema: Any, text: str | None) -> dict[str, str]:
    """Validate the JSON text ``text`` by ``schema``. If ``text`` is None, check only the schema.

    Returns ``{}`` if the text is valid. Returns ``{"fault": message}`` if the text is invalid, and
    ``{"schema": message}`` if the schema is invalid.
    """
    import jsonschema_rs

    def compile_schema(schema: Any) -> Any:
        return jsonschema_rs.validator_for(
            schema, retriever=_refuse_reference, validate_formats=True
        )

    try:
        try:
            validator = compile_schema(schema)
        except jsonschema_rs.ValidationError:  # perhaps an unknown version in ``$schema``
            validator = compile_schema(
                {key: value for key, value in schema.items() if key != "$schema"}
            )
    except (ValueError, jsonschema_rs.ReferencingError) as invalid:
        return {"schema": _first_line(invalid)}
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"fault": "it is not JSON."}
    if nesting_depth(text, "{[", "]}") > _MAX_DEPTH:
        return {"fault": "it is nested too deeply."}
    error = next(validator.iter_errors(value), None)
    return {} if error is None else {"fault": _describe(error)}


def match_grammar(lark: str, text: str, whole: bool) -> dict[str, str]:
    """Match ``text`` to a grammar in llguidance's dialect of Lark.

    Returns ``{}`` if the text matches, and ``{"fault": message}`` if it does not. If ``whole`` is
    False, it is enough that the text is the beginning of a match.
    """
    import llguidance

    defaults = llguidance.LLParserLimits()
    limits = llguidance.LLParserLimits(max_items_in_row=defaults.max_items_in_row * _LIMIT_FACTOR)
    grammar = llguidance.grammar_from("lark", lark)
    matcher = llguidance.LLMatcher(
        llguidance.LLTokenizer("byte"), grammar, log_level=0, limits=limits
    )
    ids = list(text.encode("utf-8", "replace"))
    if matcher.try_consume_tokens(ids) == len(ids) and (not whole or matcher.is_accepting()):
        return {}
    return {"fault": "it does not match the grammar."}


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"{uri} is not part of the schema")


def _describe(error: Any) -> str:
    where = "".join(
        f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.instance_path
    )
    at = f"at {where.removeprefix('.')}: " if where else ""
    return f"{at}{_first_line(error)}"[:_MAX_MESSAGE]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:_MAX_MESSAGE]


def _main() -> dict[str, str]:
    """Read the request, validate the text, and return the result.

    A missing library is reported as ``error``. Every other failure is reported as ``fault``,
    because the client's schema, grammar or text caused it.
    """
    try:
        request = json.load(sys.stdin)
        return (match_grammar if "lark" in request else validate_json)(**request)
    except ImportError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    except BaseException:  # MemoryError, RecursionError, and panics of Rust libraries
        return {"fault": "it takes too long to check."}


if __name__ == "__main__":
    limit_program(memory=_MEMORY, cpu_s=_CPU_S, open_files=_OPEN_FILES)
    sys.stdout.write(json.dumps(_main()))

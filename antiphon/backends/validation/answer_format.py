"""The format that a request demands of the answer, and the check whether a text has this format.

A text is matched to a grammar. JSON is also checked by a schema validator.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from antiphon.dialects.grammar.json_schema import (
    check_strict,
    is_enforced,
    lenient_schema,
    llguidance_schema,
)
from antiphon.dialects.grammar.user_grammars import guide_lark
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Options
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat, PlainFormat

from .grammar_matcher import Grammar, GrammarCache
from .schema_validator import SchemaValidator

_PATH = "text.format.schema"
_NO_JSON = "it is not the requested JSON."
_NO_MATCH = "it does not match the given grammar."
#: Lark grammar that matches any JSON (RFC 8259).
_JSON = r"""
start: value
value: object | array | STRING | NUMBER | "true" | "false" | "null"
object: "{" (pair ("," pair)*)? "}"
pair: STRING ":" value
array: "[" (value ("," value)*)? "]"
STRING: /"([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/
%ignore /[ \t\r\n]+/
"""
#: How often ``first_json_value`` may read the same text, on average.
_MAX_REREADS = 8
_FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


class AnswerFormat(Struct, frozen=True, kw_only=True):
    """The format that a text must have.

    ``grammar``: a grammar that the text must match. ``is_complete``: whether the grammar covers the
    whole format. If not, ``validator`` must check the text too. ``fault``: the error message for a
    text that does not match the grammar.

    ``any_json`` and ``validator`` are set for JSON only. They are needed because the grammar of a
    JSON schema also rejects some valid JSON: it permits only one order of keys and one way to
    escape characters. So if ``grammar`` rejects a text, the text is matched to ``any_json``, the
    grammar of any JSON. At the end of the text, ``validator`` decides whether the text is valid.
    """

    grammar: Grammar
    is_complete: bool = True
    fault: str = _NO_MATCH
    any_json: Grammar | None = None
    validator: SchemaValidator | None = None

    async def fault_of(self, text: str) -> str | None:
        """Check a whole text. Return a message about the fault, or None if the text is valid."""
        matcher = FormatMatcher(self)
        return matcher.feed(text) or await matcher.finish()

    async def read(self, text: str) -> str:
        """Return the answer in ``text``. JSON may be in a code fence or between other text. Raises
        ``ValueError``, with a message about the fault, if the text contains no valid answer."""
        fault = ""
        for candidate in dict.fromkeys(self._candidates(text)):
            wrong = await self.fault_of(candidate)
            if wrong is None:
                return candidate
            fault = fault if wrong == self.fault else fault or wrong
        raise ValueError(fault or self.fault)

    def _candidates(self, text: str) -> Iterator[str]:
        if self.any_json is None:
            yield text
        yield text.strip()
        if self.any_json is None:
            return
        yield from (found.strip() for found in _FENCED.findall(text))
        if (value := first_json_value(text)) is not None:
            yield value


def first_json_value(text: str) -> str | None:
    """Return the first JSON object or array in the text, or None if none was found.

    The search starts again at each opening bracket. For nested invalid JSON, it could take
    quadratic time. So the search stops without a result when it has read ``_MAX_REREADS`` times the
    length of the text.
    """
    decoder = json.JSONDecoder()
    budget = _MAX_REREADS * len(text)
    for opening in re.finditer(r"[{\[]", text):
        start = opening.start()
        try:
            _, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            budget -= error.pos - start + error.pos // 64  # the exception counts preceding lines
        except RecursionError:
            return None
        else:
            return text[start:end]
        if budget < 0:
            return None
    return None


class FormatMatcher:
    """Checks whether one text has a format, while the text streams."""

    def __init__(self, form: AnswerFormat) -> None:
        self._format = form
        self._matcher = form.grammar.matcher()
        #: Whether the text matches the format's grammar. If not, it may still be valid JSON.
        self._is_canonical = True
        #: White space at the end. It is part of the JSON only if more text follows.
        self._trailing_space = ""
        self._has_begun = False

    def feed(self, text: str) -> str | None:
        """Add text. If no continuation can make the text valid, return a message about the fault.
        Otherwise, return None."""
        any_json = self._format.any_json
        if any_json is not None:
            text = self._strip_outer_space(text)
        if not text or self._matcher.feed(text):
            return None
        if any_json is None or not self._is_canonical:
            return self._format.fault
        self._is_canonical, output = False, self._matcher.text
        self._matcher = any_json.matcher()
        return None if self._matcher.feed(output) else self._format.fault

    def _strip_outer_space(self, text: str) -> str:
        """Return ``text``, the next piece of the answer, without white space at the start of the
        answer and at the end of the piece. White space at the end of a piece is held back until
        other text follows."""
        text = self._trailing_space + text if self._has_begun else text.lstrip()
        stripped = text.rstrip()
        self._trailing_space = text[len(stripped) :]
        self._has_begun = self._has_begun or bool(stripped)
        return stripped

    @property
    def is_check_due(self) -> bool:
        """Whether ``check_prefix`` must be called now. See ``GrammarMatcher.is_check_due``."""
        return self._matcher.is_check_due

    async def check_prefix(self) -> str | None:
        """Check the text so far in a separate process. If no continuation can make the text valid,
        return a message about the fault. Otherwise, return None."""
        return None if await self._matcher.check_prefix() else self._format.fault

    async def finish(self) -> str | None:
        """Check the whole text after its last piece was passed to ``feed``. Return a message about
        the fault, or None if the text is valid."""
        validator = self._format.validator
        if not await self._matcher.finish():
            return self._format.fault
        if validator is None or (self._is_canonical and self._format.is_complete):
            return None
        return await validator.fault(self._matcher.text)


async def answer_format(options: Options, grammars: GrammarCache) -> AnswerFormat | None:
    """Return the answer format of a request, or None if any text is allowed. Raises
    ``InvalidRequest`` if the schema or the grammar of the request is invalid."""
    match options.text.format:
        case JsonSchemaFormat(schema=schema, strict=strict):
            if strict:
                check_strict(schema, _PATH)
            plain = await asyncio.to_thread(llguidance_schema, schema)
            if not await asyncio.to_thread(is_enforced, plain, _PATH, strict=bool(strict)):
                await SchemaValidator(schema, _PATH, grammars.turns).check()
                return await asyncio.to_thread(
                    json_answer_format, lenient_schema(plain), grammars, schema, is_complete=False
                )
        case PlainFormat() if options.guide is None:
            return None  # most requests: without a thread
    return await asyncio.to_thread(enforced_answer_format, options, grammars)


def enforced_answer_format(options: Options, grammars: GrammarCache) -> AnswerFormat | None:
    """Return the answer format of a request, but do not check whether its JSON schema is valid.
    Return None if any text is allowed.

    Call this function only if the schema was already checked. The dialect checks the schema if the
    engine enforces the whole format. Otherwise, call ``answer_format``, which checks the schema
    itself. Raises ``InvalidRequest`` if the request contains an invalid guide, which is a grammar
    or regex for the answer.
    """
    match options.text.format:
        case JsonObjectFormat():
            return json_answer_format({"type": "object"}, grammars)
        case JsonSchemaFormat(schema=schema):
            return json_answer_format(llguidance_schema(schema), grammars, schema)
    if options.guide is None:
        return None
    return AnswerFormat(grammar=grammars.get(guide_lark(options.guide)))


async def trusted_answer_format(options: Options, grammars: GrammarCache) -> AnswerFormat | None:
    """Return the answer format of a request, for an upstream that claims to enforce the format.
    Return None if any text is allowed or the format cannot be checked here. For example, a grammar
    may be in a language that only the upstream knows."""
    format = options.text.format
    if isinstance(format, JsonSchemaFormat) and format.strict:
        text = replace(options.text, format=replace(format, strict=False))
        options = replace(options, text=text)
    try:
        return await answer_format(options, grammars)
    except InvalidRequest:
        return None


def json_answer_format(
    schema: Mapping[str, object],
    grammars: GrammarCache,
    original: Mapping[str, object] | None = None,
    *,
    is_complete: bool = True,
    fault: str = _NO_JSON,
) -> AnswerFormat:
    """Return the ``AnswerFormat`` for JSON that matches ``schema``.

    ``schema``: a schema that a grammar can enforce. ``original``: the schema as the client sent it,
    for the validator; None if it is equal to ``schema``. ``is_complete``, ``fault``: see
    ``AnswerFormat``.
    """
    grammar = grammars.get(f"start: %json {json.dumps(schema)}")
    checked = schema if original is None else original
    validator = SchemaValidator(checked, _PATH, grammars.turns)
    any_json = grammars.get(_JSON)
    return AnswerFormat(
        grammar=grammar,
        is_complete=is_complete,
        fault=fault,
        any_json=any_json,
        validator=validator,
    )

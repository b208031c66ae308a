"""Whether an answer has the form that was asked for, as far as a grammar and a judge can tell.

It knows no model: a text is right, or wrong for a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.conversation import Options
from antiphon.dialects.grammar.json_schema import (
    bare,
    can_judge,
    check_strict,
    is_enforced,
    lenient,
)
from antiphon.dialects.grammar.user_grammars import guide_lark
from antiphon.errors import InvalidRequest
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .grammar_matcher import Grammar, GrammarCache
from .schema_validator import SchemaValidator

__all__ = [
    "AnswerFormat",
    "FormatMatcher",
    "answer_format",
    "enforced_form",
    "json_form",
    "trusted_form",
]

_PATH = "text.format.schema"
_NO_JSON = "it is not the JSON that was asked for."
_NO_MATCH = "it does not match the grammar that was given."
#: Any JSON (RFC 8259).
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
_FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


class AnswerFormat(Struct, frozen=True, kw_only=True):
    """What a text must look like. ``is_whole``: the grammar says all of it. ``fault``: what is
    wrong with a text that the grammar does not allow. JSON may be right all the same, for grammars
    have one order of keys and one way to escape: ``loose`` is the grammar of any, and a ``judge``
    tells."""

    grammar: Grammar
    is_whole: bool = True
    fault: str = _NO_MATCH
    loose: Grammar | None = None
    judge: SchemaValidator | None = None

    async def wrong(self, text: str) -> str | None:
        """What is wrong with the whole of a text, if something is."""
        coming = FormatMatcher(self)
        return coming.feed(text) or await coming.finish()

    async def read(self, text: str) -> str:
        """The answer in ``text``: JSON is found between fences and words. Raises ``ValueError``
        that says what is wrong."""
        fault = ""
        for candidate in dict.fromkeys(self._candidates(text)):
            wrong = await self.wrong(candidate)
            if wrong is None:
                return candidate
            fault = fault if wrong == self.fault else fault or wrong
        raise ValueError(fault or self.fault)

    def _candidates(self, text: str) -> Iterator[str]:
        if self.loose is None:
            yield text
        yield text.strip()
        if self.loose is None:
            return
        yield from (found.strip() for found in _FENCED.findall(text))
        decoder = json.JSONDecoder()
        for opening in re.finditer(r"[{\[]", text):
            try:
                _, end = decoder.raw_decode(text, opening.start())
            except (ValueError, RecursionError):
                continue
            yield text[opening.start() : end]
            return


class FormatMatcher:
    """One text that should have a form, as it comes."""

    def __init__(self, form: AnswerFormat) -> None:
        self._form = form
        self._following = form.grammar.follow()
        #: It is written as the grammar has it; else it may be right JSON all the same.
        self._is_usual = True
        #: White space that is no part of JSON, unless something follows.
        self._blank = ""
        self._has_begun = False

    def feed(self, text: str) -> str | None:
        """What is wrong, where nothing that could follow would make it right."""
        loose = self._form.loose
        if loose is not None:
            text = self._solid(text)
        if not text or self._following.feed(text):
            return None
        if loose is None or not self._is_usual:
            return self._form.fault
        self._is_usual, said = False, self._following.text
        self._following = loose.follow()
        return None if self._following.feed(said) else self._form.fault

    def _solid(self, text: str) -> str:
        """Without white space at its ends."""
        text = self._blank + text if self._has_begun else text.lstrip()
        said = text.rstrip()
        self._blank = text[len(said) :]
        self._has_begun = self._has_begun or bool(said)
        return said

    @property
    def is_due(self) -> bool:
        """``begins`` is to be asked."""
        return self._following.is_due

    async def check_prefix(self) -> str | None:
        """What is wrong with all so far, where that is hard to tell."""
        return None if await self._following.check_prefix() else self._form.fault

    async def finish(self) -> str | None:
        """What is wrong with the whole of it."""
        judge = self._form.judge
        if not await self._following.finish():
            return self._form.fault
        if judge is None or (self._is_usual and self._form.is_whole):
            return None
        return await judge.fault(self._following.text)


async def answer_format(options: Options, grammars: GrammarCache) -> AnswerFormat | None:
    """The form of the answer that a request asks for, if any. Raises ``InvalidRequest``."""
    match options.text.format:
        case JsonSchemaFormat(schema=schema, strict=strict):
            if strict:
                check_strict(schema, _PATH)
            if not is_enforced(bare(schema), _PATH, strict=bool(strict)):
                await SchemaValidator(schema, _PATH).check()
                return json_form(lenient(bare(schema)), grammars, schema, is_whole=False)
    return enforced_form(options, grammars)


def enforced_form(options: Options, grammars: GrammarCache) -> AnswerFormat | None:
    """The same where an engine holds to all of it: it has been checked. Raises ``InvalidRequest``
    for a guide that is none."""
    match options.text.format:
        case JsonObjectFormat():
            return json_form({"type": "object"}, grammars)
        case JsonSchemaFormat(schema=schema):
            return json_form(bare(schema), grammars, schema)
    if options.guide is None:
        return None
    return AnswerFormat(grammar=grammars.of(guide_lark(options.guide)))


async def trusted_form(options: Options, grammars: GrammarCache) -> AnswerFormat | None:
    """The same where an upstream says that it holds to it. What cannot be judged here is left to
    the upstream: a grammar in a language of its own, say."""
    format = options.text.format
    if isinstance(format, JsonSchemaFormat) and format.strict:
        text = replace(options.text, format=replace(format, strict=False))
        options = replace(options, text=text)
    try:
        return await answer_format(options, grammars)
    except InvalidRequest:
        return None


def json_form(
    schema: Mapping[str, Any],
    grammars: GrammarCache,
    judged: Mapping[str, Any] | None = None,
    *,
    is_whole: bool = True,
    fault: str = _NO_JSON,
) -> AnswerFormat:
    """JSON of a schema, which a grammar can hold to; ``judged``: as its author has it."""
    grammar = grammars.of(f"start: %json {json.dumps(schema)}")
    if not can_judge():
        return AnswerFormat(grammar=grammar, fault=fault)
    judge = SchemaValidator(schema if judged is None else judged, _PATH)
    loose = grammars.of(_JSON)
    return AnswerFormat(grammar=grammar, is_whole=is_whole, fault=fault, loose=loose, judge=judge)

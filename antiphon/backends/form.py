"""Whether an answer has the form that was asked for, as far as a grammar and a judge can tell.

It knows no model: a text is right, or wrong for a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from antiphon.conversation import Options
from antiphon.dialects.constraints import guide_lark
from antiphon.dialects.schemas import bare, check_strict, is_enforced, lenient
from antiphon.errors import InvalidRequest
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .grammar import Grammar, Grammars
from .judge import Judge

__all__ = ["Coming", "Form", "enforced_form", "form_of", "trusted_form"]

_PATH = "text.format.schema"
_NO_JSON = "it is not the JSON that was asked for."
_NO_MATCH = "it does not match the grammar that was given."
_FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


class Form:
    """What an answer must look like: a grammar, and for JSON a judge of what it leaves open."""

    def __init__(
        self,
        grammar: Grammar,
        *,
        is_json: bool,
        judge: Judge | None = None,
        fault: str | None = None,
    ) -> None:
        self.grammar = grammar
        self.is_json = is_json
        self.judge = judge
        #: What is wrong with a text that the grammar does not allow.
        self.fault = fault or (_NO_JSON if is_json else _NO_MATCH)

    def comes(self) -> Coming:
        """An answer that has it begins."""
        return Coming(self)

    async def read(self, text: str) -> str:
        """The answer in ``text``: JSON is found between fences and words. Raises ``ValueError``
        that says what is wrong."""
        fault: str | None = self.fault
        for candidate in self._candidates(text):
            if await self.grammar.allows(candidate):
                fault = None if self.judge is None else await self.judge.fault(candidate)
                if fault is None:
                    return candidate
                break
        raise ValueError(fault)

    def _candidates(self, text: str) -> Iterator[str]:
        yield text
        yield text.strip()
        if not self.is_json:
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


class Coming:
    """One text that should have a form, as it comes."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._following = form.grammar.follow()
        #: White space that is no part of JSON, unless something follows.
        self._blank = ""
        self._has_begun = False

    def more(self, text: str) -> str | None:
        """What is wrong, where nothing that could follow would make it right."""
        if self._form.is_json:
            text = self._solid(text)
        return None if not text or self._following.more(text) else self._form.fault

    @property
    def is_due(self) -> bool:
        """``begins`` is to be asked."""
        return self._following.is_due

    async def begins(self) -> str | None:
        """What is wrong with all so far, where that is hard to tell."""
        return None if await self._following.begins() else self._form.fault

    def _solid(self, text: str) -> str:
        """Without white space at its ends."""
        text = self._blank + text if self._has_begun else (self._blank + text).lstrip()
        said = text.rstrip()
        self._blank = text[len(said) :]
        self._has_begun = self._has_begun or bool(said)
        return said

    async def ends(self) -> str | None:
        """What is wrong with the whole of it."""
        if not await self._following.ends():
            return self._form.fault
        judge = self._form.judge
        return None if judge is None else await judge.fault(self._following.text)


async def form_of(options: Options, grammars: Grammars) -> Form | None:
    """The form of the answer that a request asks for, if any. Raises ``InvalidRequest``."""
    match options.text.format:
        case JsonSchemaFormat(schema=schema, strict=strict):
            if strict:
                check_strict(schema, _PATH)
            if not is_enforced(bare(schema), _PATH, strict=bool(strict)):
                return await _judged(schema, grammars)
    return enforced_form(options, grammars)


def enforced_form(options: Options, grammars: Grammars) -> Form | None:
    """The same where an engine holds to all of it: it has been checked. Raises ``InvalidRequest``
    for a guide that is none."""
    match options.text.format:
        case JsonObjectFormat():
            return _json({"type": "object"}, grammars)
        case JsonSchemaFormat(schema=schema):
            return _json(bare(schema), grammars)
    if options.guide is None:
        return None
    return Form(grammars.of(guide_lark(options.guide)), is_json=False)


async def trusted_form(options: Options, grammars: Grammars) -> Form | None:
    """The same where an upstream says that it holds to it. What cannot be judged here is left to
    the upstream: a grammar in a language of its own, say."""
    format = options.text.format
    if isinstance(format, JsonSchemaFormat) and format.strict:
        text = replace(options.text, format=replace(format, strict=False))
        options = replace(options, text=text)
    try:
        return await form_of(options, grammars)
    except InvalidRequest:
        return None


def _json(schema: Mapping[str, Any], grammars: Grammars, judge: Judge | None = None) -> Form:
    grammar = grammars.of(f"start: %json {json.dumps(schema)}")
    return Form(grammar, is_json=True, judge=judge)


async def _judged(schema: Mapping[str, Any], grammars: Grammars) -> Form:
    judge = Judge(schema, _PATH)
    await judge.check()
    return _json(lenient(bare(schema)), grammars, judge)

"""Whether an answer has the form that was asked for, as far as a grammar and a judge can tell.

It knows no model: a text is right, or wrong for a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from antiphon.conversation import Options
from antiphon.dialects.constraints import guide_lark
from antiphon.dialects.schemas import bare, check_strict, is_enforced, lenient
from antiphon.errors import SetupError
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .judge import Judge

__all__ = ["Form", "form_of"]

_PATH = "text.format.schema"
_FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


class Form:
    """What an answer must look like: a grammar in llguidance's Lark, and for JSON a judge of what
    it leaves open. Raises ``InvalidRequest`` for one that cannot be read, ``SetupError`` without
    llguidance."""

    def __init__(self, lark: str, *, is_json: bool, judge: Judge | None = None) -> None:
        try:
            import llguidance
        except ImportError:
            raise SetupError('llguidance is not installed: pip install "antiphon[llama]"') from None
        self._grammar = llguidance.grammar_from("lark", lark)
        self._matcher = llguidance.LLMatcher
        self._bytes = llguidance.LLTokenizer("byte")
        self._is_json = is_json
        self._judge = judge

    async def read(self, text: str) -> str:
        """The answer in ``text``: JSON is found between fences and words. Raises ``ValueError``
        that says what is wrong."""
        fault: str | None = (
            "it is not the JSON that was asked for."
            if self._is_json
            else "it does not match the grammar that was given."
        )
        for candidate in self._candidates(text):
            if self.obeys(candidate):
                fault = None if self._judge is None else await self._judge.fault(candidate)
                if fault is None:
                    return candidate
                break
        raise ValueError(fault)

    def _candidates(self, text: str) -> Iterator[str]:
        yield text
        yield text.strip()
        if not self._is_json:
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

    def obeys(self, text: str) -> bool:
        """By the grammar alone."""
        matcher = self._matcher(self._bytes, self._grammar)
        ids = list(text.encode("utf-8", "replace"))
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


async def form_of(options: Options) -> Form | None:
    """The form of the answer that a request asks for, if any. Raises ``InvalidRequest``."""
    match options.text.format:
        case JsonObjectFormat():
            return Form('start: %json {"type": "object"}', is_json=True)
        case JsonSchemaFormat(schema=schema, strict=strict):
            if strict:
                check_strict(schema, _PATH)
            known = bare(schema)
            if is_enforced(known, _PATH, strict=bool(strict)):
                return Form(f"start: %json {json.dumps(known)}", is_json=True)
            judge = Judge(schema, _PATH)
            await judge.check()
            return Form(f"start: %json {json.dumps(lenient(known))}", is_json=True, judge=judge)
    return None if options.guide is None else Form(guide_lark(options.guide), is_json=False)

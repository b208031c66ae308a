"""Requests without a format and without strict tools: nothing to compile."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.backends.validation.answer_format import answer_format
from antiphon.backends.validation.grammar_matcher import GrammarCache
from antiphon.backends.validation.tool_calls import tool_call_rules
from antiphon.dialects.tools import collect_tools
from antiphon.inference.conversation import Options
from antiphon.wire.tools import Function


async def test_plain_request_takes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways through a thread cost a tenth of a plain request."""

    def to_thread(*_: object, **__: object) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    grammars = GrammarCache()
    for options in (Options(), Options(tools=(Function(name="f", parameters={"type": "object"}),))):
        assert await answer_format(options, grammars) is None
        tools = collect_tools(options, ())
        assert (
            await tool_call_rules(tools, grammars, is_enforced=False, accept_strays=False)
        ) is None

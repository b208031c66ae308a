"""Every backend passes the shipped contract checks, and the checks detect violations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from antiphon.backends.base import Backend
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.inference.tokens import ModelCard
from antiphon.stream.deltas import Close, Delta, Finish, Open, SampledTokens, Text
from antiphon.testing.backend_check import CHECKS, Check, check_backend
from antiphon.testing.engine import ScriptedEngine
from antiphon.wire.items import Message
from antiphon.wire.response import Usage
from tests.dialects.families import TOKENS, source

STORY = "A boat left the harbour. It was never seen again. The sea was calm."


def local(family: str, reply: str) -> LocalBackend:
    card = ModelCard(
        name="m", context_size=1000, chat_template=source(family), bos_token=TOKENS[family][0]
    )
    engine = ScriptedEngine((reply,), special=TOKENS[family], card=card)
    return LocalBackend(engine, ChatDialect(card, engine.tokenizer))


BACKENDS: dict[str, Callable[[], Backend]] = {
    "scripted": lambda: ScriptedBackend((STORY,)),
    "local": lambda: local("smol", STORY),
    "local that thinks": lambda: local("qwen", f"<think>\nHm.\n</think>\n\n{STORY}<|im_end|>"),
    "local that is cut": lambda: local("gemma", STORY * 9),
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("name", BACKENDS)
async def test_keeps_the_contract(name: str, check: Check) -> None:
    await check(BACKENDS[name]())


async def test_checks_stop_their_generations() -> None:
    backend = ScriptedBackend((STORY,))
    await check_backend(backend)
    assert backend.aborted > 20 and not backend.closed


SHELL = Message(role="assistant", content=())
#: A scripted token is a word. These are the words of the checks' conversations.
USAGE = Usage(input_tokens=17, output_tokens=2, total_tokens=19)
END = Finish("stop", USAGE)


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ([Text("a"), END], "no item is open"),
        ([Open(SHELL), Text("a"), Close(), Text("b"), END], "no item is open"),
        ([Open(SHELL), Text("a"), END], "open at the end"),
        ([Open(SHELL), Text("a"), Close(), END, END], "after Finish"),
        (
            [Open(Message(id="msg", role="assistant", content=())), Text("a"), Close()],
            "not have an id",
        ),
        ([Open(SHELL), Text(""), Close()], "neither text nor logprobs"),
        ([Open(SHELL), Text("a"), Close(), Finish("stop", Usage())], "known before"),
        ([SampledTokens((1,)), Open(SHELL), Text("a"), Close(), END], "reported once"),
        ([Open(SHELL), Text("a b"), Close(), END], "in one piece"),
        ([Open(SHELL), Close(), END], "has no text"),
    ],
)
async def test_violations_are_detected(script: Sequence[Delta], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        await check_backend(ScriptedBackend((script,)))

"""Raw messages of a reply whose first prompt is not known."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator

import pytest

from antiphon.backends.base import DeltaSink
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import RunError
from antiphon.inference.conversation import Conversation, Options
from antiphon.runs.execution.token_log import append_prompt
from antiphon.runs.replies.raw_messages import RawMessagesReply
from antiphon.stream.deltas import Delta, NewPrompt
from antiphon.testing.replies import batches_of, push_all
from tests.backends.local.test_backend import engine as played_engine
from tests.backends.validation.test_retry import GRAMMARS, SCHEMA, reply_to
from tests.conformance.server import engine, local


async def _reply() -> RawMessagesReply:
    """A reply whose inner reply knows no prompt, as that of a model that loads during the run."""
    reply = await ScriptedBackend().prepare(Conversation(items=()), Options())
    assert reply.prompt_tokens is None
    return RawMessagesReply(
        reply, local(engine(["x"])), with_messages=True, with_metrics=False, clock=lambda: 0.0
    )


async def test_output_is_reported_without_its_unknown_prompt() -> None:
    fields = (await _reply()).final_fields(array("I", [72, 105]), ())
    assert set(fields) == {"output_messages"}
    assert fields["output_messages"][0]["tokens"] == [72, 105]


async def test_prompt_of_a_later_turn_is_known() -> None:
    log = array("I", [72])
    append_prompt(log, (), (1, 2, 3))
    log.extend([105])
    fields = (await _reply()).final_fields(log, ())
    assert fields["input_messages"][0]["tokens"] == [1, 2, 3]
    assert fields["output_messages"][0]["tokens"] == [105]


async def test_output_without_any_token_ids_is_an_error() -> None:
    with pytest.raises(RunError):
        (await _reply()).final_fields(array("I"), ())


class _LoadingReply(ReplyWrapper):
    """A reply whose model loads in the run; then it turns out that its tokens are hidden."""

    is_loaded = False
    batches = 0

    @property
    def reports_tokens(self) -> bool:
        return not self.is_loaded

    async def pump(self, sink: DeltaSink) -> None:
        await push_all(self.deltas(), sink)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        self.is_loaded = True
        yield ()
        yield (NewPrompt((1, 2)),)
        async for batch in batches_of(self._reply):
            self.batches += 1
            yield batch


async def test_hidden_tokens_end_the_run_before_the_model_answers() -> None:
    inner = _LoadingReply(await ScriptedBackend().prepare(Conversation(items=()), Options()))
    reply = RawMessagesReply(
        inner, local(engine(["x"])), with_messages=True, with_metrics=False, clock=lambda: 0.0
    )
    with pytest.raises(RunError):
        async for _ in batches_of(reply):
            pass
    assert inner.batches == 0


async def test_time_to_the_first_token_includes_that_of_loading_the_model() -> None:
    inner = _LoadingReply(await ScriptedBackend().prepare(Conversation(items=()), Options()))
    reply = RawMessagesReply(
        inner,
        local(engine(["x"])),
        with_messages=False,
        with_metrics=True,
        clock=lambda: float(inner.batches),
    )
    async for _ in batches_of(reply):
        pass
    metrics = reply.final_fields(array("I"), ())["metrics"]
    assert metrics["time_to_first_token_ms"] == 1000


async def test_retries_that_hide_the_tokens_do_not_begin() -> None:
    """The engine was to enforce the format, but let a fault through."""
    played = played_engine("No idea.", '{"age": 7}', capabilities=GRAMMARS)
    inner = await reply_to(played, text=SCHEMA)
    assert inner.reports_tokens
    reply = RawMessagesReply(
        inner, local(engine(["x"])), with_messages=True, with_metrics=False, clock=lambda: 0.0
    )
    with pytest.raises(RunError, match="not known here"):
        async for _ in batches_of(reply):
            pass
    assert len(played.requests) == 1

"""The local backend: an engine that continues tokens, with the dialect of its model.

Checks before a run that the engine can do what is asked and that it fits; then passes what the
engine samples through the dialect's parser. It knows neither templates nor formats.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from antiphon.backends.base import Backend, BackendCapabilities, Reply
from antiphon.backends.truncation import shortened
from antiphon.backends.validation.answer_format import answer_format, enforced_form
from antiphon.backends.validation.grammar_matcher import GrammarCache
from antiphon.backends.validation.retry import ValidationPlan, validated
from antiphon.backends.validation.tool_calls import tool_call_rules
from antiphon.conversation import Conversation, Options, PromptTokens, ResumePoint
from antiphon.dialects.base import Dialect, Rendered
from antiphon.dialects.tools import restrict_tools, shown_tools
from antiphon.engines.base import Engine, MeasuresImages, Sampling
from antiphon.errors import BackendError, CannotContinue, context_length_exceeded
from antiphon.stream.deltas import Delta, Finish, FinishReason
from antiphon.tokens import Chunk, Constraint, Prompt
from antiphon.wire.response import InputTokensDetails, OutputTokensDetails, Usage

from .capability_checks import accepts_grammar, check_bias, check_options, enforces_schema
from .sampling import recommended_options, sampling_of
from .text_completion import as_text, continuing

__all__ = ["LocalBackend", "LocalReply"]


class LocalBackend(Backend):
    """``Backend`` of one engine, which it owns."""

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect
        self._grammars = GrammarCache()

    @property
    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities(
            images=self._dialect.supports_images,
            completes_text=True,
            detokenizes=True,
            reasoning_retention=self._dialect.reasoning_retention,
        )

    @property
    def context_size(self) -> int:
        return self._engine.card.context_size

    @property
    def recommended_options(self) -> Mapping[str, Any]:
        return recommended_options(self._engine.card.generation)

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        """Render and check. Raises ``InvalidRequest`` with the path of the field for whatever the
        engine or the model cannot do, and where the conversation is too long."""
        self._check(options)
        can, seen = self._engine.capabilities, options
        rendered, dropped, besides = await self._rendered(conversation, options)
        if not (taken := await self._takes(rendered.constraint)):
            seen = restrict_tools(options, conversation.items)
            if seen is not options:
                rendered, dropped, besides = await self._rendered(conversation, seen)
        constraint = rendered.constraint
        holds = taken or enforces_schema(constraint, can)
        reply = self._reply(_held(rendered, holds, taken, self._engine), dropped, options, besides)
        if seen is options and (constraint is None or not constraint.needed):
            return reply
        asked = await self._asked(conversation, options, constraint if holds else None, taken)

        async def again(corrected: Conversation) -> Reply:
            rendered, dropped, besides = await self._rendered(corrected, seen)
            held = _held(rendered, holds, taken, self._engine)
            return self._reply(held, dropped, options, besides)

        return validated(reply, asked, conversation, again)

    async def _takes(self, constraint: Constraint | None) -> bool:
        can = self._engine.capabilities
        if constraint is None or can.grammars is None:
            return accepts_grammar(constraint, can)
        return await asyncio.to_thread(accepts_grammar, constraint, can)

    async def _asked(
        self,
        conversation: Conversation,
        options: Options,
        held: Constraint | None,
        holds_calls: bool,
    ) -> ValidationPlan:
        """What must be right. ``held``: what the engine holds the model to."""
        grammars, is_whole = self._grammars, held is not None and not held.partial
        shown = shown_tools(options, conversation.items)
        return ValidationPlan(
            form=enforced_form(options, grammars)
            if is_whole
            else await answer_format(options, grammars),
            calls=tool_call_rules(
                shown, grammars, held=holds_calls, strays=options.accept_stray_calls
            ),
            holds_form=is_whole,
            holds_calls=holds_calls,
            talks=bool(shown.tools) and not holds_calls,
        )

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> Reply:
        """Go on with a text. Raises ``InvalidRequest``."""
        self._check(options)
        rendered = await asyncio.to_thread(continuing, self._engine, prompt)
        return self._reply(rendered, (), options)

    def _check(self, options: Options) -> None:
        check_options(options, self._engine.capabilities)
        check_bias(options.logit_bias, self._engine.tokenizer.size)

    async def _rendered(
        self, conversation: Conversation, options: Options
    ) -> tuple[Rendered, tuple[str, ...], int]:
        """The prompt, what was dropped for its sake, and the tokens of its images."""
        # Rendering and encoding a long conversation takes longer than others should wait.
        rendered, dropped = await asyncio.to_thread(self._render, conversation, options, {})
        images, engine = rendered.prompt.images, self._engine
        if not images or not isinstance(engine, MeasuresImages):
            return rendered, dropped, 0
        sizes = {image.content: await engine.image_tokens(image) for image in images}
        if _weight(rendered, sizes) >= self.context_size:
            rendered, dropped = await asyncio.to_thread(self._render, conversation, options, sizes)
        return rendered, dropped, _weight(rendered, sizes) - len(rendered.prompt.ids)

    def _reply(
        self,
        rendered: Rendered,
        dropped: tuple[str, ...],
        options: Options,
        besides: int = 0,
    ) -> LocalReply:
        return LocalReply(
            self._engine,
            rendered,
            self._sampling(rendered, options, besides),
            options,
            dropped,
            besides=besides,
        )

    def _render(
        self, conversation: Conversation, options: Options, sizes: Mapping[bytes, int]
    ) -> tuple[Rendered, tuple[str, ...]]:
        """``sizes``: the tokens of images, by their contents."""
        rendered = self._dialect.render(conversation, options)
        if _weight(rendered, sizes) < self.context_size:
            return rendered, ()
        if options.truncate:
            room = self.context_size - self._answer_room(options)
            found = shortened(
                conversation,
                lambda shorter: self._dialect.render(shorter, options),
                lambda shorter: _weight(shorter, sizes) <= room,
            )
            if found is not None:
                return found
        raise context_length_exceeded()

    def _answer_room(self, options: Options) -> int:
        """Tokens that truncation leaves for the answer: what is asked for, but no more than a
        quarter of the context."""
        most = max(1, self.context_size // 4)
        return min(options.max_output_tokens or most, most)

    def _sampling(self, rendered: Rendered, options: Options, besides: int) -> Sampling:
        rest = self.context_size - len(rendered.prompt.ids) - besides
        asked = options.max_output_tokens
        return sampling_of(options, rendered, rest if asked is None else min(asked, rest))

    def detokenize(self, ids: Sequence[int]) -> str:
        """What the ids stand for, control tokens by their literals."""
        return b"".join(map(self._engine.tokenizer.piece, ids)).decode("utf-8", "replace")

    async def close(self) -> None:
        await self._engine.close()


class LocalReply(Reply):
    """``Reply`` of a local model: rendered and checked, nothing generated yet."""

    dropped_ids: tuple[str, ...] = ()

    def __init__(
        self,
        engine: Engine,
        rendered: Rendered,
        sampling: Sampling,
        options: Options,
        dropped: tuple[str, ...],
        *,
        besides: int = 0,
        begun: tuple[int, ...] = (),
    ) -> None:
        self._engine = engine
        self._rendered = rendered
        self._sampling = sampling
        self._besides = besides
        self._begun = begun
        self._options = options
        self._budget = options.thinking_budget if rendered.reasoning_end_ids else None
        #: The thinking was cut short.
        self._thought = False
        self.dropped_ids = dropped

    @property
    def may_fail_early(self) -> bool:
        return self._engine.capabilities.may_refuse

    @property
    def input_tokens(self) -> int:
        return len(self._rendered.prompt.ids) + self._besides

    @property
    def prompt_tokens(self) -> PromptTokens:
        return PromptTokens(
            ids=self._rendered.prompt.ids, fingerprint=self._engine.card.fingerprint
        )

    def resume(self, point: ResumePoint) -> LocalReply:
        """From the tokens so far. A grammar cannot be entered in the middle: one that only makes
        the reply better is left out, one that is needed makes this impossible. Images stand where
        they stood only in a prompt that is the same."""
        rendered, sampling = self._rendered, self._sampling
        if rendered.prompt.images and rendered.prompt.ids != point.prompt_ids:
            raise CannotContinue("its images would stand elsewhere")
        if point.sampled_ids and sampling.constraint is not None:
            if sampling.constraint.needed:
                raise CannotContinue("its format was enforced by a grammar")
            sampling = replace(sampling, constraint=None)
        prompt = Prompt(point.prompt_ids, rendered.prompt.images)
        rendered = replace(rendered, prompt=prompt)
        return LocalReply(
            self._engine,
            rendered,
            sampling,
            self._options,
            self.dropped_ids,
            besides=self._besides,
            begun=point.sampled_ids,
        )

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Generate. The engine is stopped as soon as the rest of its output cannot matter."""
        parser = self._rendered.parser
        sampled, cached = array("I", self._begun), 0
        known: tuple[Delta, ...] = ()
        reason, stopped, untold = self._caught_up(), False, 0
        while reason is None:
            if self._has_thought_enough:
                sampled.extend(self._rendered.reasoning_end_ids)
                yield tuple(parser.feed(Chunk(self._rendered.reasoning_end_ids)))
                self._thought = True
            prompt, sampling = self._continuation(sampled)
            if sampling.max_tokens < 1:
                reason, known = "length", ()
                break
            async with aclosing(self._engine.generate(prompt, sampling)) as chunks:
                async for chunk in chunks:
                    # what a later call finds in the cache is what this one put there
                    if chunk.cached_tokens is not None and not self._thought:
                        cached = chunk.cached_tokens
                    known, reason = self._read(chunk, sampled)
                    if reason is not None:
                        stopped, untold = chunk.stop_text in self._options.stop, chunk.untold
                        break
                    if known:
                        yield known
                    if self._has_thought_enough:
                        break
                else:
                    raise BackendError("The engine stopped without saying why.")
        finish = Finish(reason, self._usage(len(sampled), untold, cached), stopped)
        yield (*known, *parser.finish(reason), finish)

    def _read(
        self, chunk: Chunk, sampled: array[int]
    ) -> tuple[tuple[Delta, ...], FinishReason | None]:
        """What a chunk says, and why the reply is over, if it is. Where the reply may end before
        the engine does, at a token: what else came with it is dropped, however much that was."""
        parser, known = self._rendered.parser, list[Delta]()
        is_exact = self._budget is not None or not self._options.parallel_tool_calls
        for piece in _pieces(chunk) if is_exact else (chunk,):
            sampled.extend(piece.ids)
            known += parser.feed(self._with_stop(piece))
            reason: FinishReason | None = "stop" if parser.done else piece.finish
            if reason is not None or self._has_thought_enough:
                break
        return tuple(known), reason

    def _with_stop(self, chunk: Chunk) -> Chunk:
        """The chunk with the stop string that ended it, where that is part of the answer."""
        if self._options.include_stop_text and chunk.stop_text in self._options.stop:
            return replace(chunk, tail=chunk.tail + (chunk.stop_text or ""))
        return chunk

    @property
    def _has_thought_enough(self) -> bool:
        parser, budget = self._rendered.parser, self._budget
        return budget is not None and parser.is_thinking and parser.reasoning_tokens >= budget

    def _caught_up(self) -> FinishReason | None:
        """Bring the parser to where the reply was interrupted: what it says to that has been said.
        Returns why the reply is over, if it is."""
        if not self._begun:
            return None
        parser, last = self._rendered.parser, self._begun[-1]
        list(parser.feed(Chunk(self._begun)))
        if parser.done or last in (*self._rendered.stop_ids, *self._engine.tokenizer.end_ids):
            return "stop"
        return "length" if len(self._begun) >= self._sampling.max_tokens else None

    def _continuation(self, sampled: array[int]) -> tuple[Prompt, Sampling]:
        """What the engine is asked: the prompt with the tokens so far, for as many as are left."""
        prompt, sampling = self._rendered.prompt, self._sampling
        if not sampled:
            return prompt, sampling
        sampling = replace(sampling, max_tokens=sampling.max_tokens - len(sampled))
        if self._thought:
            sampling = replace(sampling, constraint=self._rendered.answer_constraint)
        return Prompt((*prompt.ids, *sampled), prompt.images), sampling

    def _usage(self, told: int, untold: int, cached: int) -> Usage:
        parser = self._rendered.parser
        return Usage(
            input_tokens=self.input_tokens,
            # what was sampled before an interruption may be cached too, but is no input
            input_tokens_details=InputTokensDetails(cached_tokens=min(cached, self.input_tokens)),
            output_tokens=told + untold,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=parser.reasoning_tokens + (untold if parser.is_thinking else 0)
            ),
            total_tokens=self.input_tokens + told + untold,
        )


def _weight(rendered: Rendered, sizes: Mapping[bytes, int]) -> int:
    prompt = rendered.prompt
    return len(prompt.ids) + sum(sizes.get(image.content, 0) for image in prompt.images)


def _held(rendered: Rendered, holds: bool, taken: bool, engine: Engine) -> Rendered:
    """As the engine can be asked for it. ``taken``: with its grammar. One that knows schemas alone
    holds to them from the first token on: what it writes is JSON, whatever stands in its strings.
    """
    if not holds:
        return _freed(rendered)
    if rendered.constraint is None or taken:
        return rendered
    return replace(rendered, parser=as_text(engine.tokenizer, is_json=True))


def _freed(rendered: Rendered) -> Rendered:
    """The same, held to nothing."""
    rendered.parser.set_unconstrained()
    return replace(rendered, constraint=None, answer_constraint=None)


def _pieces(chunk: Chunk) -> Iterator[Chunk]:
    """A chunk token by token."""
    for at, token in enumerate(chunk.ids[:-1]):
        yield Chunk((token,), chunk.logprobs[at : at + 1])
    yield replace(chunk, ids=chunk.ids[-1:], logprobs=chunk.logprobs[-1:])

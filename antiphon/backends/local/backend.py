"""The local backend. It combines an engine, which generates the next tokens for a prompt of token
ids, with the dialect of a model.

Before the engine is called, the backend checks that the engine supports the request and that the
prompt fits into the context. While the engine generates, the dialect's parser converts its output
to deltas.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from antiphon.backends.base import Backend, BackendCapabilities, DeltaSink, Reply, Status
from antiphon.backends.truncation import shorten_conversation
from antiphon.backends.validation.answer_format import answer_format, enforced_answer_format
from antiphon.backends.validation.grammar_matcher import GrammarCache
from antiphon.backends.validation.retry import ValidationPlan, validate_reply
from antiphon.backends.validation.tool_calls import tool_call_rules
from antiphon.dialects.base import DescribedDialect, Dialect, MessageDialect, Rendered
from antiphon.dialects.tools import collect_tools, restrict_tools
from antiphon.engines.base import CachingEngine, Engine, ImageMeasurer, Sampling, SessionObserver
from antiphon.engines.common.continued_engine import ContinuedEngine
from antiphon.engines.common.watched_generation import GrammarWatch
from antiphon.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    BackendError,
    CannotContinue,
    InvalidRequest,
    context_length_exceeded,
)
from antiphon.inference.conversation import Conversation, Options, PromptTokens, ResumePoint
from antiphon.inference.sampling import SessionSignal
from antiphon.inference.tokens import Chunk, Constraint, Prompt
from antiphon.stream.deltas import Delta, Finish, FinishReason, Open
from antiphon.stream.kinds import KINDS
from antiphon.support.encoding_work import encode_in_thread, limit_ids
from antiphon.support.push import send
from antiphon.wire.items import Item, is_model_call
from antiphon.wire.response import InputTokensDetails, OutputTokensDetails, Usage

from .capability_checks import accepts_grammar, check_logit_bias, check_options, enforces_schema
from .prompt_heads import PromptHeads
from .sampling import build_sampling, recommended_options
from .text_completion import plain_text_parser, render_text

__all__ = ["LocalBackend", "LocalReply"]

#: A step of truncation is the maximum size of a prompt, divided by this number.
_TRUNCATION_STEPS = 4
#: Ids that are encoded at most, as a multiple of the context: a dialect may encode a text twice.
_MAX_ENCODED = 2
#: The same for a conversation that may be truncated. If it has more ids, its size is not known.
_MAX_MEASURED = 16


class LocalBackend(Backend):
    """``Backend`` of one engine and its model's dialect. ``close`` also closes the engine."""

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect
        self._heads = PromptHeads(dialect)
        self._grammars = GrammarCache()
        self._watch = GrammarWatch(ContinuedEngine(engine))
        described = dialect if isinstance(dialect, DescribedDialect) else None
        self._thinks = None if described is None else described.thinks
        self._template = "" if described is None else described.template_source

    @property
    def engine(self) -> Engine:
        """The engine of this backend."""
        return self._engine

    @property
    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities(
            images=self._dialect.supports_images,
            completes_text=True,
            detokenizes=True,
            thinks=self._thinks,
            template=self._template,
            reasoning_retention=self._dialect.reasoning_retention,
        )

    @property
    def context_size(self) -> int:
        return self._engine.card.context_size

    @property
    def status(self) -> Status:
        engine = self._engine
        if not isinstance(engine, CachingEngine):
            return Status(value="loaded")
        return Status(value="loaded", prefix_cache=engine.prefix_cache, threads=engine.threads)

    async def on_session(self, signal: SessionSignal) -> None:
        if isinstance(self._engine, SessionObserver):
            await self._engine.on_session(signal)

    @property
    def recommended_options(self) -> Mapping[str, Any]:
        return recommended_options(self._engine.card.generation)

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        """Check the request and render the prompt.

        Raises ``InvalidRequest``, with the path of the field, if the engine or the model does not
        support the request, or if the conversation is too long.
        """
        self._check(options)
        capabilities, effective_options = self._engine.capabilities, options
        rendered, dropped_ids, extra_image_tokens = await self._render_async(conversation, options)
        if not (takes_grammar := await self._accepts_grammar(rendered.constraint)):
            effective_options = restrict_tools(options, conversation.items)
            if effective_options is not options:
                rendered, dropped_ids, extra_image_tokens = await self._render_async(
                    conversation, effective_options
                )
        constraint = rendered.constraint
        is_enforced = takes_grammar or enforces_schema(constraint, capabilities)
        reply = self._reply(
            _for_engine(rendered, is_enforced, takes_grammar, self._engine),
            dropped_ids,
            options,
            extra_image_tokens,
        )
        if effective_options is options and (constraint is None or not constraint.needed):
            return reply
        plan = await self._validation_plan(
            conversation, options, constraint if is_enforced else None, takes_grammar
        )

        async def retry(corrected: Conversation) -> Reply:
            rendered, dropped_ids, extra_image_tokens = await self._render_async(
                corrected, effective_options
            )
            adapted = _for_engine(rendered, is_enforced, takes_grammar, self._engine)
            return self._reply(adapted, dropped_ids, options, extra_image_tokens)

        return validate_reply(reply, plan, conversation, retry)

    async def _accepts_grammar(self, constraint: Constraint | None) -> bool:
        capabilities = self._engine.capabilities
        if constraint is None or capabilities.grammars is None:
            return accepts_grammar(constraint, capabilities)
        return await asyncio.to_thread(accepts_grammar, constraint, capabilities)

    async def _validation_plan(
        self,
        conversation: Conversation,
        options: Options,
        enforced: Constraint | None,
        enforces_calls: bool,
    ) -> ValidationPlan:
        """Return the plan that says which parts of the reply must be validated, and how.

        ``enforced``: the constraint that the engine enforces, or None. ``enforces_calls``: whether
        the engine enforces the rules for tool calls.
        """
        grammars, enforces_format = self._grammars, enforced is not None and not enforced.partial
        tools = collect_tools(options, conversation.items)
        return ValidationPlan(
            answer_format=await asyncio.to_thread(enforced_answer_format, options, grammars)
            if enforces_format
            else await answer_format(options, grammars),
            tool_calls=await tool_call_rules(
                tools,
                grammars,
                is_enforced=enforces_calls,
                accept_strays=options.accept_stray_calls,
            ),
            enforces_format=enforces_format,
            enforces_calls=enforces_calls,
            allows_text_with_calls=bool(tools.tools) and not enforces_calls,
        )

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> Reply:
        """Prepare a text completion. Raises ``InvalidRequest`` if the engine does not support the
        options or the text is invalid."""
        self._check(options)
        rendered = await encode_in_thread(render_text, self._engine, prompt)
        return self._reply(rendered, (), options)

    def _check(self, options: Options) -> None:
        check_options(options, self._engine.capabilities)
        check_logit_bias(options.logit_bias, self._engine.tokenizer.size)

    async def _render_async(
        self, conversation: Conversation, options: Options
    ) -> tuple[Rendered, tuple[str, ...], int]:
        """Render the prompt on a thread.

        Returns the rendered prompt, the ids of the items that truncation dropped, and the number of
        tokens that images take in addition to the prompt's ids.
        """
        # Rendering and encoding a long conversation would block the event loop for too long.
        rendered, dropped_ids = await encode_in_thread(self._render, conversation, options, {})
        images, engine = rendered.prompt.images, self._engine
        if not images or not isinstance(engine, ImageMeasurer):
            return rendered, dropped_ids, 0
        sizes = {image.content: await engine.image_tokens(image) for image in images}
        if _prompt_size(rendered, sizes) >= self.context_size:
            rendered, dropped_ids = await encode_in_thread(
                self._render, conversation, options, sizes
            )
        return rendered, dropped_ids, _prompt_size(rendered, sizes) - len(rendered.prompt.ids)

    def _reply(
        self,
        rendered: Rendered,
        dropped_ids: tuple[str, ...],
        options: Options,
        extra_image_tokens: int = 0,
    ) -> LocalReply:
        return LocalReply(
            self._engine,
            self._watch,
            rendered,
            self._sampling(rendered, options, extra_image_tokens),
            options,
            dropped_ids,
            extra_image_tokens=extra_image_tokens,
        )

    def _render(
        self, conversation: Conversation, options: Options, sizes: Mapping[bytes, int]
    ) -> tuple[Rendered, tuple[str, ...]]:
        """Render the conversation. Truncate it if it is too long and the request allows truncation.
        ``sizes``: content of an image → its number of tokens."""
        most = _MAX_MEASURED if options.truncate else _MAX_ENCODED
        rendered = self._render_bounded(conversation, options, most)
        if rendered is not None and _prompt_size(rendered, sizes) < self.context_size:
            if self._engine.capabilities.uses_heads:
                rendered = self._heads.add_head(rendered, conversation, options)
            return rendered, ()
        if options.truncate:
            size = None if rendered is None else _prompt_size(rendered, sizes)
            for room in self._prompt_rooms(size, options):
                shortened = shorten_conversation(
                    conversation,
                    lambda shorter: self._render_bounded(shorter, options, _MAX_ENCODED),
                    lambda shorter, room=room: _prompt_size(shorter, sizes) <= room,  # type: ignore[misc]
                )
                if shortened is not None:
                    return shortened
        raise context_length_exceeded()

    def _render_bounded(
        self, conversation: Conversation, options: Options, most: int
    ) -> Rendered | None:
        """Render the conversation. Returns None if the prompt has more ids than ``most`` times the
        context."""
        try:
            with limit_ids(most * self.context_size):
                return self._dialect.render(conversation, options)
        except InvalidRequest as error:
            if error.code != CONTEXT_LENGTH_EXCEEDED:
                raise
            return None

    def _prompt_rooms(self, size: int | None, options: Options) -> Iterator[int]:
        """Yield the maximum sizes of a truncated prompt in tokens, in the order in which they are
        tried. ``size``: the size of the whole prompt, if it is known.

        If the engine caches prefixes, the number of tokens to drop is first rounded up to whole
        steps. The next turns then drop the same items, and continue the state of this prompt.
        """
        room = self.context_size - self._answer_room(options)
        if self._engine.capabilities.cached_tokens and size is not None:
            yield room - (room - size) % max(1, room // _TRUNCATION_STEPS)
        yield room

    def _answer_room(self, options: Options) -> int:
        """Return how many tokens truncation leaves free for the answer: the requested maximum, but
        at most a quarter of the context."""
        max_tokens = max(1, self.context_size // 4)
        return min(options.max_output_tokens or max_tokens, max_tokens)

    def _sampling(self, rendered: Rendered, options: Options, extra_image_tokens: int) -> Sampling:
        tokens_left = self.context_size - len(rendered.prompt.ids) - extra_image_tokens
        requested = options.max_output_tokens
        return build_sampling(
            options, rendered, tokens_left if requested is None else min(requested, tokens_left)
        )

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of the ids. A control token is returned as its text. Raises
        ``BackendError`` for an id that is not in the model's vocabulary."""
        tokenizer = self._engine.tokenizer
        if any(not 0 <= id < tokenizer.size for id in ids):
            raise BackendError(f"This model has {tokenizer.size} tokens.", permanent=True)
        return b"".join(map(tokenizer.piece, ids)).decode("utf-8", "replace")

    def split_messages(self, ids: Sequence[int]) -> list[tuple[Sequence[int], Mapping[str, Any]]]:
        if isinstance(self._dialect, MessageDialect):
            return self._dialect.split_messages(ids)
        return super().split_messages(ids)

    async def close(self) -> None:
        await self._engine.close()


class LocalReply(Reply):
    """``Reply`` of a local model.

    ``extra_image_tokens``: number of tokens that the images take in the context beyond their
    placeholder ids in the prompt.

    Two arguments are only for a reply that continues after an interruption:

    - ``sampled_before``: the ids that were sampled before the interruption.
    - ``written_before``: the last item that the model wrote before the interruption, if it is a
      message or a call of a client's tool.
    """

    dropped_ids: tuple[str, ...] = ()

    def __init__(
        self,
        engine: Engine,
        watch: GrammarWatch,
        rendered: Rendered,
        sampling: Sampling,
        options: Options,
        dropped_ids: tuple[str, ...],
        *,
        extra_image_tokens: int = 0,
        sampled_before: tuple[int, ...] = (),
        written_before: Item | None = None,
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._rendered = rendered
        self._sampling = sampling
        self._extra_image_tokens = extra_image_tokens
        self._sampled_before = sampled_before
        self._written_before = written_before
        self._options = options
        self._budget = options.thinking_budget if rendered.reasoning_end_ids else None
        #: Whether the reasoning budget was used up, so the reasoning was ended by force.
        self._reasoning_cut = False
        self._is_stopped = False
        self._has_calls = False
        self.dropped_ids = dropped_ids

    @property
    def may_fail_early(self) -> bool:
        return self._engine.capabilities.may_refuse

    @property
    def input_tokens(self) -> int:
        return len(self._rendered.prompt.ids) + self._extra_image_tokens

    @property
    def prompt_tokens(self) -> PromptTokens:
        return PromptTokens(
            ids=self._rendered.prompt.ids, fingerprint=self._engine.card.fingerprint
        )

    def resume(self, point: ResumePoint) -> LocalReply:
        """Return a reply that continues after the tokens that were sampled before an interruption.

        An engine cannot start in the middle of a grammar. So the engine samples without the
        grammar, and Antiphon enforces the grammar: it matches the sampled tokens to the grammar,
        and uses ``logit_bias`` where they do not match. Raises ``CannotContinue`` in two cases:

        - The prompt has images, and its ids are not the same as before the interruption. The images
          would then be at other positions.
        - The output must match a grammar, but the engine does not support ``logit_bias``.
        """
        rendered, sampling = self._rendered, self._sampling
        if rendered.prompt.images and rendered.prompt.ids != point.prompt_ids:
            raise CannotContinue("its images would be at other positions")
        constraint = sampling.constraint if point.sampled_ids else None
        if constraint and constraint.needed and not self._engine.capabilities.logit_bias:
            raise CannotContinue("its format was enforced by a grammar")
        prompt = Prompt(point.prompt_ids, rendered.prompt.images)
        rendered = replace(rendered, prompt=prompt)
        return LocalReply(
            self._engine,
            self._watch,
            rendered,
            sampling,
            self._options,
            self.dropped_ids,
            extra_image_tokens=self._extra_image_tokens,
            sampled_before=point.sampled_ids,
            written_before=_last_written(point),
        )

    def stop(self) -> None:
        self._is_stopped = True

    async def pump(self, sink: DeltaSink) -> None:
        """Generate the reply. Stop the engine as soon as further output would be discarded."""
        parser = self._rendered.parser
        sampled, cached = array("I", self._sampled_before), 0
        deltas: tuple[Delta, ...] = ()
        reason, unreported = self._replay(), 0
        stop_text: str | None = None
        while reason is None:
            if self._budget_spent:
                sampled.extend(self._rendered.reasoning_end_ids)
                await send(sink, tuple(parser.feed(Chunk(self._rendered.reasoning_end_ids))))
                self._reasoning_cut = True
            prompt, sampling = self._continuation(sampled)
            async with aclosing(self._generate(prompt, sampling)) as chunks:
                async for chunk in chunks:
                    # a later engine call finds this reply's own tokens in the cache
                    if chunk.cached_tokens is not None and self._counts_cached_tokens:
                        cached = chunk.cached_tokens
                    deltas, reason = self._read(chunk, sampled)
                    if reason is not None:
                        stop_text = self._requested_stop(chunk)
                        unreported = chunk.unreported_tokens
                        break
                    if deltas and (rest := sink(deltas)) is not None:
                        await rest
                    if self._is_stopped:
                        reason, deltas = "length", ()
                    if reason is not None or self._budget_spent:
                        break
                else:
                    raise BackendError("The engine stopped without a finish reason.")
        finish = Finish(reason, self._usage(len(sampled), unreported, cached), stop_text)
        last = (*deltas, *parser.finish(reason), finish)
        await self._report_end(last)
        await send(sink, last)

    async def _report_end(self, last: Sequence[Delta]) -> None:
        """If the reply calls a tool, tell the engine that the conversation's next prompt waits for
        the result. ``last``: the last deltas of the reply."""
        key, engine = self._sampling.session_key, self._engine
        is_waiting = self._has_calls or _opens_call(last)
        if is_waiting and key is not None and isinstance(engine, SessionObserver):
            tenant = self._sampling.tenant
            await engine.on_session(SessionSignal(event="waiting", key=key, tenant=tenant))

    def _generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Return an iterator over the chunks that continue the prompt."""
        if self._sampled_before and not self._reasoning_cut:
            return self._watch.resume(self._rendered.prompt, self._sampling, self._sampled_before)
        return self._watch.generate(prompt, sampling)

    def _read(
        self, chunk: Chunk, sampled: array[int]
    ) -> tuple[tuple[Delta, ...], FinishReason | None]:
        """Parse a chunk, and append its ids to ``sampled``.

        Returns the deltas of the chunk, and the finish reason or None if the reply goes on. If
        there is a reasoning budget, or if only one call is allowed, the reply may end before the
        engine stops. In these cases, the chunk is read token by token, and the tokens after the end
        are dropped.
        """
        parser, deltas = self._rendered.parser, list[Delta]()
        is_exact = self._budget is not None or not self._options.allows_parallel_calls
        for piece in _single_tokens(chunk) if is_exact else (chunk,):
            sampled.extend(piece.ids)
            deltas += parser.feed(self._with_stop(piece))
            reason: FinishReason | None = "stop" if parser.done else piece.finish
            if reason is not None or self._budget_spent:
                break
        self._has_calls = self._has_calls or _opens_call(deltas)
        return tuple(deltas), reason

    def _with_stop(self, chunk: Chunk) -> Chunk:
        """If a stop string of the request ended the chunk and the answer must include stop strings,
        return a copy of the chunk with the stop string at its end. Otherwise return the chunk
        unchanged."""
        if self._options.include_stop_text and (stop := self._requested_stop(chunk)):
            return replace(chunk, tail=chunk.tail + stop)
        return chunk

    def _requested_stop(self, chunk: Chunk) -> str | None:
        """Return the stop string that ended the chunk. Return None if no stop string ended it, or
        if the stop string comes from the dialect and not from the request."""
        return chunk.stop_text if chunk.stop_text in self._options.stop else None

    @property
    def _budget_spent(self) -> bool:
        parser, budget = self._rendered.parser, self._budget
        return budget is not None and parser.is_thinking and parser.reasoning_tokens >= budget

    @property
    def _counts_cached_tokens(self) -> bool:
        """Whether the reply's usage includes the number of cached tokens that the engine reports.
        The engine's number is ignored in two cases:

        - A request of another tenant may have put the tokens into the cache. The number would
          reveal what other tenants send.
        - The reasoning was cut off, so the reply needs a second engine call. The second call finds
          the tokens of the first call in the cache.
        """
        is_separate = (
            self._sampling.cache_scope is None or self._engine.capabilities.separates_caches
        )
        return is_separate and not self._reasoning_cut

    def _replay(self) -> FinishReason | None:
        """Give the parser the tokens that were sampled before the run was interrupted. Discard the
        deltas, because the client already has them.

        Returns the finish reason if the reply had already ended before the interruption. Otherwise,
        returns None.

        Raises ``CannotContinue`` if the last item before the interruption (``written_before``) is
        not among the parsed items. This happens if the first output was invalid and
        ``RetryingReply`` called the model a second time. The model then wrote the item in the
        second call, whose tokens are not stored. So the item cannot be continued.
        """
        parser = self._rendered.parser
        deltas = list(parser.feed(Chunk(self._sampled_before))) if self._sampled_before else []
        opened = {type(delta.item) for delta in deltas if isinstance(delta, Open)}
        if self._written_before is not None and type(self._written_before) not in opened:
            raise CannotContinue("its output was generated again")
        if not self._sampled_before:
            return None
        last = self._sampled_before[-1]
        if parser.done or last in (*self._rendered.stop_ids, *self._engine.tokenizer.end_ids):
            return "stop"
        return "length" if len(self._sampled_before) >= self._sampling.max_tokens else None

    def _continuation(self, sampled: array[int]) -> tuple[Prompt, Sampling]:
        """Return the prompt followed by the tokens sampled so far, and the sampling options for the
        further tokens."""
        prompt, sampling = self._rendered.prompt, self._sampling
        if not sampled:
            return prompt, sampling
        sampling = sampling.after(sampled)
        if self._reasoning_cut:
            sampling = replace(sampling, constraint=self._rendered.answer_constraint)
        return prompt.followed_by(sampled), sampling

    def _usage(self, reported: int, unreported: int, cached: int) -> Usage:
        parser = self._rendered.parser
        return Usage(
            input_tokens=self.input_tokens,
            # tokens sampled before an interruption may be cached too, but they are no input
            input_tokens_details=InputTokensDetails(cached_tokens=min(cached, self.input_tokens)),
            output_tokens=reported + unreported,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=parser.reasoning_tokens + (unreported if parser.is_thinking else 0)
            ),
            total_tokens=self.input_tokens + reported + unreported,
        )


def _opens_call(deltas: Sequence[Delta]) -> bool:
    """Return whether a delta opens an item that calls a tool."""
    return any(isinstance(each, Open) and KINDS[type(each.item)].counts_as_call for each in deltas)


def _prompt_size(rendered: Rendered, sizes: Mapping[bytes, int]) -> int:
    prompt = rendered.prompt
    return len(prompt.ids) + sum(sizes.get(image.content, 0) for image in prompt.images)


def _for_engine(
    rendered: Rendered, is_enforced: bool, takes_grammar: bool, engine: Engine
) -> Rendered:
    """Adapt the constraint and the parser of the rendered prompt to what the engine can enforce.

    A constraint contains a grammar for the whole output of the model. Some constraints also contain
    a JSON schema for the answer, for engines that enforce only JSON schemas.

    - ``is_enforced``: whether the engine enforces the grammar or the schema. If it enforces
      neither, the constraint is removed.
    - ``takes_grammar``: whether the engine enforces the grammar. If the engine enforces only the
      schema, the whole output is JSON, so it is parsed as JSON.
    """
    if not is_enforced:
        return _unconstrained(rendered)
    if rendered.constraint is None or takes_grammar:
        return rendered
    return replace(rendered, parser=plain_text_parser(engine.tokenizer, is_json=True))


def _unconstrained(rendered: Rendered) -> Rendered:
    """Return the rendered prompt without its constraint."""
    rendered.parser.set_unconstrained()
    return replace(rendered, constraint=None, answer_constraint=None)


def _single_tokens(chunk: Chunk) -> Iterator[Chunk]:
    """Split a chunk into chunks of one token each."""
    for at, token in enumerate(chunk.ids[:-1]):
        yield Chunk((token,), chunk.logprobs[at : at + 1])
    yield replace(chunk, ids=chunk.ids[-1:], logprobs=chunk.logprobs[-1:])


def _last_written(point: ResumePoint) -> Item | None:
    """Return the last item before the interruption, if it is a message or a call of a client's
    tool. Return None for an item of another type, such as a call of a server-side tool."""
    last = next(reversed((*point.items, *point.open_items)), None)
    return last if last and (last.is_message or is_model_call(last)) else None

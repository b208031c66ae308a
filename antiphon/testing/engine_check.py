"""Checks of the contract of an engine, for authors of engines.

Each check is a coroutine function that takes a loaded engine and raises ``AssertionError``.
Features that the engine does not have, according to its capabilities, are not checked. The checks
never depend on the content of the text.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.base import Engine, Sampling
from antiphon.errors import AntiphonError, BackendError, InvalidRequest
from antiphon.inference.tokens import Chunk, Constraint, EncodedImage, Prompt, TokenLogprob

from .checks import checks_of

__all__ = ["CHECKS", "Check", "Outcome", "check_closed", "check_engine", "collect"]

_Error = TypeVar("_Error", bound=AntiphonError)
Check = Callable[[Engine], Awaitable[None]]

TIMEOUT_S = 120
#: Number of attempts of ``tokens_stream``. If all tokens arrive with the end every time, they count
#: as not streamed.
STREAM_ATTEMPTS = 8
TEXT = "The sea was calm. Three boats left the harbour at dawn, and one of them"
#: Largest difference of two logprobs that count as equal. Engines add numbers in a different order
#: when prompts share a batch or come from a cache. The last digits of a logit then differ. If two
#: tokens are almost equally likely, another token may be chosen.
LOGPROB_TOLERANCE = 0.05
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["size"],
    "additionalProperties": False,
}
#: Constraint for an object without white space. A small model may write white space without end.
JSON_OBJECT = Constraint(
    f"start: %json {json.dumps({'x-guidance': {'whitespace_flexible': False}, **SCHEMA})}",
    schema=SCHEMA,
)


class Outcome(Struct, frozen=True):
    """The result of one generation: all chunks, and the ids and logprobs in them."""

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    chunks: tuple[Chunk, ...]
    cached_tokens: int | None

    @property
    def last(self) -> Chunk:
        return self.chunks[-1]

    def text(self, engine: Engine) -> str:
        """Return the text of the generated token ids, without special tokens and incomplete
        characters."""
        special = frozenset(engine.tokenizer.special.values())
        pieces = (engine.tokenizer.piece(id) for id in self.ids if id not in special)
        return b"".join(pieces).decode("utf-8", "ignore")


async def collect(engine: Engine, prompt: Prompt, sampling: Sampling) -> Outcome:
    """Generate tokens until the engine ends the output, and check the rules that apply to every
    generation. Return all chunks with their ids and logprobs."""
    chunks: list[Chunk] = []
    async with asyncio.timeout(TIMEOUT_S):
        async for chunk in engine.generate(prompt, sampling):
            assert not chunks or chunks[-1].finish is None, "a chunk came after the last one"
            expected = len(chunk.ids) if sampling.logprobs is not None else 0
            assert len(chunk.logprobs) == expected, "logprobs must be as long as ids, or empty"
            assert all(0 <= id < engine.tokenizer.size for id in chunk.ids), "ids must exist"
            chunks.append(chunk)
    assert chunks and chunks[-1].finish is not None, "the last chunk must have a finish reason"
    cached = next((c.cached_tokens for c in chunks if c.cached_tokens is not None), None)
    return Outcome(
        tuple(id for chunk in chunks for id in chunk.ids),
        tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
        tuple(chunks),
        cached,
    )


def _prompt(engine: Engine, text: str = TEXT) -> Prompt:
    return Prompt(tuple(engine.tokenizer.encode(text, special=True)))


def _greedy(max_tokens: int, **more: Any) -> Sampling:
    return Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True, **more)


async def tokenizer_spells_what_it_reads(engine: Engine) -> None:
    for text in ("plain words", "Grüße, 漢字 🦄🇩🇪", "  two\n\n\tthree   ", "x" * 300):
        for special in (True, False):
            ids = engine.tokenizer.encode(text, special=special)
            spelled = b"".join(engine.tokenizer.piece(id) for id in ids).decode()
            assert spelled in (text, " " + text), f"{text!r} became {spelled!r}"
    assert engine.tokenizer.encode("", special=True) == [], "an empty text must have no ids"
    for unknown in (engine.tokenizer.size, -1):
        assert engine.tokenizer.piece(unknown) == b"", f"the unknown id {unknown} must have no text"


async def text_cannot_spell_special_tokens(engine: Engine) -> None:
    tokenizer = engine.tokenizer
    for literal, id in tokenizer.special.items():
        assert id in tokenizer.encode(literal, special=True), (
            f"{literal} was not encoded as a special token"
        )
        plain = tokenizer.encode(f"a{literal}b {literal}", special=False)
        assert not set(plain) & set(tokenizer.special.values()), (
            f"plain text became the special token {literal}"
        )


async def length_is_exact(engine: Engine) -> None:
    for count in (1, 2, 17):
        outcome = await collect(engine, _prompt(engine), _greedy(count))
        told = len(outcome.ids) + outcome.last.unreported_tokens
        assert (told, outcome.last.finish) == (count, "length"), (
            f"with max_tokens={count} and ignore_eos, the engine sampled {told} tokens and ended"
            f" with {outcome.last.finish!r}"
        )


async def tokens_stream(engine: Engine) -> None:
    """Check that tokens arrive before the end of the generation. The check makes several attempts:
    on a busy machine, a fast engine may finish before the check reads its first token."""
    for _ in range(STREAM_ATTEMPTS):
        chunks = engine.generate(_prompt(engine), _greedy(40))
        async with contextlib.aclosing(chunks), asyncio.timeout(TIMEOUT_S):
            seen = 0
            async for chunk in chunks:
                seen += len(chunk.ids)
                if chunk.finish is None and seen:
                    return
    raise AssertionError("all tokens came with the end")


async def greedy_is_deterministic(engine: Engine) -> None:
    greedy = _greedy(24, **_logprob_options(engine))
    # An earlier generation may have left a part of the prompt in the prefix cache, which changes
    # rounding. After this generation, both compared generations find the same cache.
    await collect(engine, _prompt(engine), greedy)
    first, second = [await collect(engine, _prompt(engine), greedy) for _ in range(2)]
    assert _same_ids(first, second), "greedy sampling gave two answers"


async def seed_is_reproducible(engine: Engine) -> None:
    if not engine.capabilities.seed:
        return
    await collect(engine, _prompt(engine), _greedy(1))  # fill the prefix cache first

    async def sampled(seed: int) -> tuple[int, ...]:
        sampling = Sampling(max_tokens=24, temperature=1.5, seed=seed, ignore_eos=True)
        return (await collect(engine, _prompt(engine), sampling)).ids

    answers = [await sampled(7), await sampled(7)]
    if answers[0] != answers[1]:  # threads may round sums differently, which rarely changes a token
        answers.append(await sampled(7))
    assert len(set(answers)) < len(answers), "the same seed gave different outputs"
    assert len({await sampled(seed) for seed in range(4)}) > 1, (
        "different seeds gave the same output"
    )


async def closing_aborts(engine: Engine) -> None:
    long = _greedy(engine.card.context_size)
    for _ in range(20):  # more than can run concurrently: an abort must free its place
        chunks = engine.generate(_prompt(engine), long)
        async with asyncio.timeout(TIMEOUT_S):
            await anext(chunks)
            await chunks.aclose()
            await chunks.aclose()
        assert await anext(chunks, None) is None, "a chunk came after the abort"
    await _still_generates(engine)


async def cancelling_aborts(engine: Engine) -> None:
    async def endless() -> None:
        await collect(engine, _prompt(engine), _greedy(engine.card.context_size))

    for patience in range(4):
        tasks = [asyncio.create_task(endless()) for _ in range(6)]
        for _ in range(patience):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks), (
            "a cancelled generation ended by itself, or hid the cancellation"
        )
    await _still_generates(engine)


async def _still_generates(engine: Engine) -> None:
    count = len((await collect(engine, _prompt(engine), _greedy(2))).ids)
    assert count == 2, f"after the aborts, the engine generated {count} tokens instead of 2"


async def stop_strings_end_generation(engine: Engine) -> None:
    whole = await collect(engine, _prompt(engine), _greedy(24))
    text = whole.text(engine)
    for begin in (0, 1, 5, 12):
        stop = text[begin : begin + 4]
        if not stop:
            continue
        sampling = _greedy(24, stop=("\0never", stop))
        outcome = await collect(engine, _prompt(engine), sampling)
        assert (outcome.last.finish, outcome.last.stop_text) == ("stop", stop), (
            f"the generation did not end at the stop string {stop!r}: {outcome.last}"
        )
        shown = outcome.text(engine) + outcome.last.tail
        assert shown == text[: text.index(stop)], (
            f"the text before the stop string {stop!r} is wrong: {shown!r}"
        )
        assert outcome.ids == whole.ids[: len(outcome.ids)], (
            "ids must be the ids before the stop string"
        )


async def stop_ids_end_generation(engine: Engine) -> None:
    whole = await collect(engine, _prompt(engine), _greedy(24))
    stop = whole.ids[10]
    outcome = await collect(engine, _prompt(engine), _greedy(24, stop_ids=(stop,)))
    assert outcome.last.finish == "stop", f"the generation did not end at the stop id {stop}"
    assert outcome.ids == whole.ids[: whole.ids.index(stop) + 1], (
        "the stop id itself must be yielded"
    )


async def logprobs_are_reported(engine: Engine) -> None:
    most = engine.capabilities.max_logprobs
    if most is None:
        return
    for count in sorted({0, min(1, most), most}):
        outcome = await collect(engine, _prompt(engine), _greedy(4, logprobs=count))
        for id, told in zip(outcome.ids, outcome.logprobs, strict=True):
            values = [each.logprob for each in told.top]
            assert told.id == id and told.logprob <= 0, f"{told} is no logprob of the id {id}"
            assert len(values) == count and values == sorted(values, reverse=True), (
                f"top must contain the {count} most likely tokens, best first: {told.top}"
            )
            assert count == 0 or told.top[0].id == id, (
                "greedy sampling must choose the most likely token"
            )
    hot = Sampling(max_tokens=1, temperature=2, logprobs=most)
    told = (await collect(engine, _prompt(engine), hot)).logprobs[0]
    for drawn, sure in zip(told.top, outcome.logprobs[0].top, strict=True):
        difference = abs(drawn.logprob - sure.logprob)
        assert difference < LOGPROB_TOLERANCE, "logprobs must not depend on the temperature"


async def constraints_are_obeyed(engine: Engine) -> None:
    capabilities = engine.capabilities
    is_grammar = capabilities.constraints or (
        capabilities.grammars is not None and capabilities.grammars(JSON_OBJECT.lark)
    )
    if not (is_grammar or capabilities.schemas):
        return
    for temperature in (0, 1.5):
        sampling = Sampling(max_tokens=60, temperature=temperature, seed=1, constraint=JSON_OBJECT)
        if not capabilities.seed:
            sampling = replace(sampling, seed=None)
        outcome = await collect(engine, _prompt(engine), sampling)
        text = outcome.text(engine)
        if is_grammar:
            assert outcome.last.finish == "stop", f"the constraint did not end the output: {text!r}"
            assert 0 <= json.loads(text)["size"] <= 9, f"the output breaks the schema: {text!r}"
        else:  # with schemas but no grammars, white space may not end
            dense = "".join(text.split())
            assert any(f'{{"size":{n}}}'.startswith(dense) for n in range(10)), (
                f"the output breaks the schema: {text!r}"
            )


async def invalid_constraints_are_rejected(engine: Engine) -> None:
    if not engine.capabilities.constraints:
        return
    for lark in ("start: %json {", "start: missing", "nothing at all", "start: /(/"):
        broken = _greedy(4, constraint=Constraint(lark))
        await _raises(InvalidRequest, engine, _prompt(engine), broken)


async def logit_bias_is_applied(engine: Engine) -> None:
    if not engine.capabilities.logit_bias:
        return
    first = (await collect(engine, _prompt(engine), _greedy(1))).ids[0]
    other = next(id for id in engine.tokenizer.encode(TEXT, special=False) if id != first)
    for bias, expected in (({other: 100.0}, True), ({first: -100.0}, False)):
        drawn = (await collect(engine, _prompt(engine), _greedy(1, logit_bias=bias))).ids[0]
        assert (drawn in bias) is expected, f"the logit bias {bias} had no effect: id {drawn}"


async def concurrent_generations_are_independent(engine: Engine) -> None:
    prompts = [_prompt(engine, f"{TEXT} number {n}") for n in range(6)]
    alone = [
        await collect(engine, each, _greedy(12, **_logprob_options(engine))) for each in prompts
    ]
    together = await asyncio.gather(
        *(collect(engine, each, _greedy(12, **_logprob_options(engine))) for each in prompts)
    )
    for one, other in zip(alone, together, strict=True):
        assert _same_ids(one, other), "concurrent generations changed the output"


async def prefixes_are_reused(engine: Engine) -> None:
    if not engine.capabilities.cached_tokens:
        return
    prompt = _prompt(engine, "A prompt that nothing else uses. " + TEXT * 4)
    first = await collect(engine, prompt, _greedy(8))
    longer = Prompt(prompt.ids + first.ids + prompt.ids[:5])
    second = await collect(engine, longer, _greedy(2))
    assert first.cached_tokens is not None and second.cached_tokens is not None, (
        "a chunk of each generation must contain cached_tokens"
    )
    assert first.cached_tokens < len(prompt.ids), "a new prompt cannot come from the cache"
    # A part of the prefix is enough: engines with sliding windows reuse only checkpoints.
    assert len(prompt.ids) // 2 <= second.cached_tokens < len(longer.ids), (
        f"of {len(longer.ids)} prompt tokens, {second.cached_tokens} came from the cache"
    )


async def scopes_share_no_prefix(engine: Engine) -> None:
    """Check that a request reuses a cached prefix of its own cache scope, but no cached prefix of
    another cache scope."""
    if not engine.capabilities.separates_caches:
        return
    prompt = _prompt(engine, "A prompt of one scope. " + TEXT * 4)
    counts = [
        (await collect(engine, prompt, _greedy(1, cache_scope=scope))).cached_tokens
        for scope in ("one", "one", "other", None)
    ]
    assert counts[1], "a prefix was not reused in its own cache scope"
    assert not any((counts[0], counts[2], counts[3])), (
        f"a prefix was reused in another cache scope: {counts}"
    )


async def images_are_not_ignored(engine: Engine) -> None:
    """Check that an engine without image support rejects a prompt with images. It must not ignore
    the images."""
    if engine.capabilities.images is None:
        prompt = replace(_prompt(engine), images=(EncodedImage(b"\x89PNG", "image/png", 0),))
        await _raises(InvalidRequest, engine, prompt, _greedy(1))


async def long_prompts_are_rejected(engine: Engine) -> None:
    one = _prompt(engine).ids[0]
    prompt = Prompt((one,) * (engine.card.context_size + 1))
    error = await _raises(InvalidRequest, engine, prompt, _greedy(1))
    assert error.code == "context_length_exceeded", f"the error has the code {error.code!r}"


CHECKS: Mapping[str, Check] = checks_of(globals(), "engine")


async def check_engine(engine: Engine) -> None:
    """Run all checks on a loaded engine, one after the other. The engine stays open."""
    for check in CHECKS.values():
        await check(engine)


async def check_closed(engine: Engine) -> None:
    """Close an engine while it generates. Check that this generation and all later generations end
    with ``BackendError``."""
    chunks = engine.generate(_prompt(engine), _greedy(engine.card.context_size))
    async with asyncio.timeout(TIMEOUT_S):
        await anext(chunks)
        await engine.close()
        try:
            async for chunk in chunks:
                assert chunk.finish is None, (
                    "an interrupted generation must not have a finish reason"
                )
        except BackendError:
            pass
        else:
            raise AssertionError("BackendError was expected")
        await engine.close()
    await _raises(BackendError, engine, _prompt(engine), _greedy(1))


def _logprob_options(engine: Engine) -> Mapping[str, Any]:
    """Return the options with which a generation also returns logprobs, because ``_same_ids``
    compares the logprobs of two generations. Returns no options if the engine does not support
    logprobs."""
    supported = engine.capabilities.max_logprobs
    return {} if supported is None else {"logprobs": min(2, supported)}


def _same_ids(one: Outcome, other: Outcome) -> bool:
    """Return whether two generations have the same ids, or differ only because of rounding.

    Only the first different id is examined. The difference is accepted if the two most likely
    tokens at this position have almost the same probability. Later ids are not compared, because
    they continue different texts.
    """
    for place, (left, right) in enumerate(zip(one.ids, other.ids, strict=True)):
        if left != right:
            if not one.logprobs or not other.logprobs:
                return False
            best = (one.logprobs[place], other.logprobs[place])
            top = one.logprobs[place].top
            gap = top[0].logprob - top[1].logprob if len(top) > 1 else 0.0
            # Each of the two tokens is the best one in its generation, so their logprobs must be
            # close.
            return gap < LOGPROB_TOLERANCE and (
                abs(best[0].logprob - best[1].logprob) < LOGPROB_TOLERANCE
            )
    return True


async def _raises(kind: type[_Error], engine: Engine, prompt: Prompt, sampling: Sampling) -> _Error:
    try:
        await collect(engine, prompt, sampling)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")

"""The model and the tools of a simulation.

What the model says follows from the conversation alone, so that a whole answer is known in
advance. It echoes the messages of the user that it sees. A message consists of a name and of words
that direct the model: the name of a tool (``TOOLS``) makes it call this tool first, ``program``
lets a program call these tools, ``tokens`` lets it report its tokens, ``slow`` and ``long`` let it
pause, ``fails`` lets it fail in the middle, and ``breaks`` lets it do so every other time.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, Literal

from antiphon.backends.base import Backend, BackendCapabilities, DeltaSink, Reply
from antiphon.errors import BackendError
from antiphon.inference.conversation import Conversation, Options, PromptTokens, ResumePoint
from antiphon.sandbox.javascript import CallOutcome, JavaScript, ProgramCall, ProgramState
from antiphon.stream.deltas import Close, Delta, Finish, Open, SampledTokens, Text
from antiphon.testing.replies import push_all
from antiphon.tools.base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.tools.programs.provider import NAME
from antiphon.wire import items as it
from antiphon.wire.response import Usage
from antiphon.wire.tools import Function, Mcp

#: The tools, and what their calls change: ``roll`` must not run twice, ``task`` neither, but the
#: call can be continued once the tool has named a task, ``pay`` runs once for each idempotency key,
#: ``look`` only reads.
TOOLS: Mapping[str, Literal["none", "idempotent", "any"]] = {
    "roll": "any",
    "task": "any",
    "pay": "idempotent",
    "look": "none",
}

_WORDS = 6
#: Mean seconds between two words of the model.
_PAUSES_S = {"slow": 0.5, "long": 4.0}


def text_of(item: object) -> str:
    """Return the text of a message; "" for other items."""
    if not isinstance(item, it.Message):
        return ""
    return "".join(getattr(part, "text", "") for part in item.content)


def user_texts(items: Sequence[object]) -> tuple[str, ...]:
    """Return the messages of the user."""
    return tuple(
        text_of(item) for item in items if isinstance(item, it.Message) and item.role == "user"
    )


def answer_to(texts: Sequence[str]) -> str:
    """Return the answer to a conversation: what the user said, then some words."""
    return "saw " + "; ".join(texts) + "".join(f" word{number}" for number in range(_WORDS))


class SimulatedBackend(Backend):
    """The model of one process. ``broken`` collects violations of the contract with a backend."""

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    capabilities = BackendCapabilities()

    def __init__(self, random: Random, broken: list[str]) -> None:
        self._random = random
        self._broken = broken

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        last_user = max(
            index
            for index, item in enumerate(conversation.items)
            if isinstance(item, it.Message) and item.role == "user"
        )
        texts = user_texts(conversation.items)
        await asyncio.sleep(self._random.expovariate(1 / 0.002))
        called = _has_called(texts, conversation.items[last_user:])
        return _Reply(self._random, self._broken, conversation, texts, called=called)


def _has_called(texts: Sequence[str], items: Sequence[object]) -> bool:
    """Return whether the calls of the last message are done. ``items``: what followed it."""
    is_program = "program" in texts[-1].split()
    outputs = it.ProgramOutput if is_program else it.McpCall | it.FunctionCallOutput
    return any(isinstance(item, outputs) for item in items)


class _Reply(Reply):
    """One model call: a tool call, or the echo, one word a batch and one token a batch."""

    input_tokens = 1

    def __init__(
        self,
        random: Random,
        broken: list[str],
        conversation: Conversation,
        texts: tuple[str, ...],
        *,
        called: bool,
    ) -> None:
        self._random = random
        self._broken = broken
        self._directions = texts[-1].split()[1:]
        self._start = 0
        self._has_tokens = "tokens" in self._directions
        prompt = tuple(_token(repr(item)) for item in conversation.items)
        self._prompt = PromptTokens(ids=prompt, fingerprint="words") if self._has_tokens else None
        self._texts = texts
        self._play(called=called)

    def _play(self, *, called: bool) -> None:
        """Choose what is said. ``called``: the tools have been called."""
        self._batches: list[tuple[Delta, ...]]
        names = [name for name in TOOLS if name in self._directions]
        if names and not called and "program" in self._directions:
            program = it.CustomToolCall(call_id="", name=NAME, input="")
            code = " ".join(names)
            self._batches = [(Open(program),), (Text(code),), (Close(),)]
        elif names and not called:
            self._batches = []
            for name in names:
                call = it.FunctionCall(call_id="", name=name, namespace="dice", arguments="")
                self._batches += [(Open(call),), (Text("{"),), (Text("}"),), (Close(),)]
        else:
            message = it.Message(role="assistant", content=())
            words = [(Text(word),) for word in _split(answer_to(self._texts))]
            self._batches = [(Open(message),), *words, (Close(),)]
        self._ids = [_token(f"{number} {batch}") for number, batch in enumerate(self._batches)]

    @property
    def prompt_tokens(self) -> PromptTokens | None:
        return self._prompt

    def resume(self, point: ResumePoint) -> Reply:
        count = len(point.sampled_ids)
        if not self._has_tokens:
            if count:
                self._broken.append("tokens of a reply that has none")
            return self
        if point.items:  # like an engine, it continues the prompt of the last turn
            self._play(called=_has_called(self._texts, point.items))
        prompt = self._prompt.ids if self._prompt is not None else ()
        if point.prompt_ids[: len(prompt)] != prompt:
            self._broken.append(f"a reply is resumed behind a foreign prompt: {point}")
        if list(point.sampled_ids) != self._ids[:count]:
            self._broken.append(f"a reply is resumed with foreign tokens: {point}")
        self._start = count
        return self

    async def pump(self, sink: DeltaSink) -> None:
        await push_all(self.deltas(), sink)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        pause_s = max((_PAUSES_S.get(word, 0.01) for word in self._directions), default=0.01)
        fails = "breaks" in self._directions and self._random.random() < 0.5
        fails = fails or "fails" in self._directions
        for number in range(self._start, len(self._batches)):
            await asyncio.sleep(self._random.expovariate(1 / pause_s))
            if fails and number == len(self._batches) // 2:
                raise BackendError("The engine failed.")
            batch = self._batches[number]
            yield (SampledTokens((self._ids[number],)), *batch) if self._has_tokens else batch
        yield (Finish("stop", Usage(input_tokens=1, output_tokens=1, total_tokens=2)),)


def _token(text: str) -> int:
    return zlib.crc32(text.encode()) & 0xFFFFFF


def _split(text: str) -> list[str]:
    words = text.split(" ")
    return [words[0], *(f" {word}" for word in words[1:])]


class Toolbox:
    """The world outside, in which tools act.

    ``starts``: how often a call was started, by response and idempotency key. ``effects``: how
    often the call changed something, by idempotency key; ``pay`` recognizes a repeated key.
    ``reads``: the keys of calls that only read. ``broken`` collects violations.
    """

    def __init__(self, random: Random, broken: list[str]) -> None:
        self._random = random
        self.broken = broken
        self.starts: dict[str, Counter[str]] = {}
        self.effects = Counter[str]()
        self.reads: set[str] = set()
        #: Called with the response of each call that is started.
        self.on_start: Callable[[str], None] = lambda response_id: None
        self._sent: list[asyncio.Task[None]] = []
        #: The tasks that were cancelled, although nobody can wait for them any more.
        self.cancelled_tasks: set[int] = set()

    def send(self, name: str, response_id: str, key: str) -> int:
        """Send the call to the tool. The caller can then no longer prevent it. Returns the number
        for ``answer``."""
        self.starts.setdefault(response_id, Counter())[key] += 1
        self.on_start(response_id)
        if TOOLS[name] == "none":
            self.reads.add(key)
        loop = asyncio.get_running_loop()
        self._sent.append(loop.create_task(self._act(name, key), context=Context()))
        return len(self._sent) - 1

    async def answer(self, number: int) -> None:
        """Wait for the answer to a call."""
        await asyncio.shield(self._sent[number])

    async def _act(self, name: str, key: str) -> None:
        await asyncio.sleep(self._random.expovariate(1 / 0.3))
        if TOOLS[name] == "any" or (name == "pay" and not self.effects[key]):
            self.effects[key] += 1
        await asyncio.sleep(self._random.expovariate(1 / 0.3))


class Tools(ToolProvider[Mcp]):
    """The provider of the tools of ``TOOLS``."""

    def __init__(self, random: Random, toolbox: Toolbox) -> None:
        self._random = random
        self._toolbox = toolbox
        self._asking: set[asyncio.Task[None]] = set()

    def leading_item(self, tool: Mcp, response: ResponseContext) -> it.Item | None:
        listed = any(isinstance(item, it.McpListTools) for item in response.items)
        return None if listed else it.McpListTools(server_label=tool.server_label, tools=())

    @asynccontextmanager
    async def open(self, tool: Mcp, response: ResponseContext) -> AsyncIterator[Toolset]:
        await asyncio.sleep(self._random.expovariate(1 / 0.01))
        functions = tuple(
            ToolFunction(
                tool=Function(name=name),
                initial_item=it.McpCall(server_label=tool.server_label, name=name, arguments=""),
                handler=partial(self._run, name),
                streams_text=True,
                effects=effects,
                namespace=tool.server_label,
            )
            for name, effects in TOOLS.items()
        )
        yield Toolset(functions=functions, fields={"tools": tuple({"name": n} for n in TOOLS)})

    async def _run(
        self, name: str, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        toolbox = self._toolbox
        if name == "task":
            await self._run_task(context)
        else:
            await toolbox.answer(toolbox.send(name, context.response_id, context.idempotency_key))
        yield ToolResult(text="six", fields={"output": "six"})

    async def _run_task(self, context: CallContext) -> None:
        """Run a call as the MCP client does that of a server with tasks."""
        toolbox, number = self._toolbox, int(context.note or -1)
        if number < 0:
            number = toolbox.send("task", context.response_id, context.idempotency_key)
            await asyncio.sleep(self._random.expovariate(1 / 0.1))
            await context.keep_note(str(number).encode())
        if number in toolbox.cancelled_tasks:
            toolbox.broken.append(f"{context.response_id} waits for a cancelled task")
        try:
            await toolbox.answer(number)
        except asyncio.CancelledError:
            asking = asyncio.get_running_loop().create_task(self._cancel(number, context))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
            raise

    async def _cancel(self, number: int, context: CallContext) -> None:
        if await context.has_ended():
            self._toolbox.cancelled_tasks.add(number)


class SimulatedJavaScript(JavaScript):
    """Runs programs that consist of the names of tools. The last tool is called when the calls of
    the others have ended."""

    def __init__(self, random: Random) -> None:
        self._random = random

    async def advance(
        self,
        code: str,
        paths: Sequence[tuple[str, ...]],
        outcomes: Sequence[CallOutcome] = (),
        *,
        time_ms: int = 0,
        tenant: str = "",
    ) -> ProgramState:
        await asyncio.sleep(self._random.expovariate(1 / 0.01))
        names = code.split()
        end = len(names) - (len(outcomes) < len(names) - 1)
        calls = tuple(ProgramCall(("dice", name), "") for name in names[len(outcomes) : end])
        return ProgramState(pending_calls=calls, output=f"{len(outcomes)} calls")

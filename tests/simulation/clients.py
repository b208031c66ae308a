"""The clients of a simulation: they create, follow, resume, poll, cancel and delete responses.

Each writes what it saw into the ``History``, and checks at once what must hold at that moment.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from random import Random
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.errors import AccessRevoked, NotFound, Overloaded, RequestError, RunError
from antiphon.limits.clients import Client as Sender
from antiphon.runs.execution.run import EventSink
from antiphon.runs.service import Service
from antiphon.wire.cursors import PageParams
from antiphon.wire.events import Event
from antiphon.wire.items import InputText, Message
from antiphon.wire.parsing.requests import parse_create_response
from antiphon.wire.resources.conversations import CreateConversation
from antiphon.wire.response import Response

from .engine import TOOLS, text_of, user_texts
from .processes import ConnectionLost, Server

TENANT = "tenant"
_ENDED = ("completed", "incomplete", "failed", "cancelled")
_QUOTA = "insufficient_quota"
_RESPONSES_WITH_ITEMS = ("completed", "incomplete")
#: What a client answers by a retry.
_OUTAGES = (ConnectionLost, RunError, Overloaded)
_encode = msgspec.json.Encoder().encode
#: Virtual seconds between two attempts of a client.
_RETRY_S = 0.5
#: Virtual seconds in which one request of a client has to be answered once no fault is active.
_PATIENCE_S = 120.0
#: Attempts to create a response whose quota is exceeded.
_QUOTA_ATTEMPTS = 5


class Violation(AssertionError):
    """An invariant does not hold."""


class Turn(Struct, kw_only=True):
    """One response as its client knows it. ``key``: the client's API key. ``seen``: what the user
    says in the conversation that the response continues, for chains. ``lines``: the event log as a
    reader got it. ``reader``: the present attempt to read it."""

    text: str
    key: str
    background: bool
    interrupted_tools: str | None = None
    seen: tuple[str, ...] = ()
    conversation: str | None = None
    id: str = ""
    lines: list[bytes] = field(default_factory=list)
    reader: object = None
    terminal: Response | None = None
    cancelled: bool = False
    deleted: bool = False

    @property
    def tools(self) -> list[str]:
        """The names of the tools that the model calls."""
        return [word for word in self.text.split() if word in TOOLS]


class History(Struct):
    """Everything that clients saw."""

    turns: list[Turn] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class _Sink(EventSink):
    """The socket of a foreground stream."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, events: tuple[Event, ...]) -> None:
        self.has_sent = True
        self.events += events


class Client:
    """A client with a script of ``turns`` turns, each at a random server. Its API key has the name
    of the client. The script ends when the key is revoked."""

    def __init__(
        self,
        name: str,
        servers: Sequence[Server],
        history: History,
        random: Random,
        *,
        turns: int,
        conversation: str | None,
        chained: bool,
    ) -> None:
        self.name = name
        self._servers = servers
        self._history = history
        self._random = random
        self._turns = turns
        self._conversation = conversation
        self._chained = chained
        self._previous: Turn | None = None
        self._own_turns: list[Turn] = []
        self._sender = Sender(key=name)
        #: Whether the key will be revoked. Many of its answers take long enough to notice.
        self.loses_access = False
        #: Whether it steers responses. A successor may exceed a quota of responses.
        self.steers = True
        #: A response of the current turn may be gone.
        self._deletes = False
        #: What the client waits for; for the report of a client that never ends.
        self.waits_for = "nothing"

    async def run(self) -> None:
        """Play the script."""
        try:
            await self._play()
        except AccessRevoked:
            self._history.counts["locked out"] += 1

    async def _play(self) -> None:
        for number in range(self._turns):
            await asyncio.sleep(self._random.expovariate(1 / 1.0))
            turn = self._new_turn(number)
            self._history.turns.append(turn)
            self._own_turns.append(turn)
            if turn.background:
                await self._background(turn)
            else:
                await self._foreground(turn)
            is_usable = turn.terminal is not None and not turn.deleted
            if is_usable and turn.terminal.status in _RESPONSES_WITH_ITEMS:  # type: ignore[union-attr]
                self._previous = turn

    def _new_turn(self, number: int) -> Turn:
        random = self._random
        self._deletes = False
        words = [f"{self.name}.{number}"]
        words += [word for word in ("roll", "tokens") if random.random() < 0.5]
        words += [word for word in ("pay", "look", "task", "program") if random.random() < 0.25]
        words += [word for word in ("slow", "fails", "breaks") if random.random() < 0.1]
        words += [word for word in ("long",) if self.loses_access and random.random() < 0.5]
        observed: tuple[str, ...] = ()
        if self._chained and self._previous is not None:
            observed = (*self._previous.seen, self._previous.text)
        return Turn(
            text=" ".join(words),
            key=self.name,
            background=random.random() < 0.75,
            interrupted_tools=random.choice((None, None, "tell", "retry", "fail")),
            seen=observed,
            conversation=self._conversation,
        )

    def _body(self, turn: Turn) -> Any:
        body: dict[str, Any] = {"model": "simulated", "input": turn.text}
        if turn.background:
            body["background"] = True
        if turn.conversation is not None:
            body["conversation"] = turn.conversation
        elif self._chained and self._previous is not None:
            body["previous_response_id"] = self._previous.id
        if turn.interrupted_tools is not None:
            body["interrupted_tools"] = turn.interrupted_tools
        if turn.tools:
            body["tools"] = [
                {
                    "type": "mcp",
                    "server_label": "dice",
                    "server_url": "http://localhost/mcp",
                    "require_approval": "never",
                    "allowed_callers": ["direct", "programmatic"],
                },
                {"type": "programmatic_tool_calling"},
            ]
        return parse_create_response(json.dumps(body).encode())

    async def _ask(self, what: str, operation: Any) -> Any:
        """Ask a random server, again after each outage. Raises ``RequestError``."""
        self.waits_for = what
        while True:
            try:
                return await self._request(operation)
            except AccessRevoked:
                raise
            except NotFound as error:
                if self._deletes:
                    raise
                raise Violation(f"{self.name} waits for {what}: {error.message}") from error
            except _OUTAGES:
                self._history.counts["outages"] += 1
                await asyncio.sleep(self._random.uniform(0, 2 * _RETRY_S))

    async def _request(self, operation: Any) -> Any:
        """Ask a random server."""
        return await self._random.choice(self._servers).request(operation, (TENANT, self.name))

    async def _create(self, what: str, turn: Turn, operation: Any) -> Any:
        """Create a response. A lock of the conversation is waited for. Returns None if the quota
        stays exceeded."""
        refusals = 0
        while refusals < _QUOTA_ATTEMPTS:
            try:
                return await self._ask(what, operation)
            except RequestError as error:
                await self._handle_refusal(turn, error)
                refusals += error.code == _QUOTA
                await asyncio.sleep(self._random.uniform(0, 4 * _RETRY_S))
        return None

    async def _handle_refusal(self, turn: Turn, error: RequestError) -> None:
        """Make room if the quota is exceeded. Raises ``Violation`` for an unexpected error."""
        if error.code not in ("conversation_locked", _QUOTA):
            raise Violation(f"{turn.text}: {error.message}") from error
        if error.code == "conversation_locked":
            self._history.counts["locked"] += 1
            return
        self._history.counts["quota exceeded"] += 1
        for each in self._own_turns:
            is_needed = each.conversation is not None or (self._chained and each is self._previous)
            if each.terminal is not None and not each.deleted and not is_needed:
                return await self._delete_now(each)

    # --- background ------------------------------------------------------------------------------

    async def _background(self, turn: Turn) -> None:
        request = self._body(turn)
        # With an idempotency key, a client without an answer may ask again.
        response_id = "resp_" + turn.text.partition(" ")[0].replace(".", "x")

        async def create(service: Service) -> Response:
            run = await service.enqueue(TENANT, request, response_id, client=self._sender)
            return run.response

        turn.id = response_id
        if await self._create("the answer to a create", turn, create) is None:
            return
        extra = self._extra(turn)
        try:
            await self._follow(turn)
        finally:
            if extra is not None:
                await extra

    def _extra(self, turn: Turn) -> asyncio.Task[None] | None:
        """What else the client does with the response while it follows it."""
        kind = self._random.random()
        work: Coroutine[Any, Any, None] | None = None
        if kind < 0.15:
            work = self._cancel(turn)
        elif kind < 0.2 and turn.conversation is None:
            work = self._delete(turn)
        elif kind < 0.3 and turn.conversation is None and self.steers:
            work = self._steer(turn)
        elif kind < 0.5:
            work = self._poll(turn)
        return None if work is None else asyncio.create_task(work)

    async def _follow(self, turn: Turn) -> None:
        """Read the events to the end, through disconnections, then retrieve the response."""
        self.waits_for = f"the end of {turn.text}"
        while True:
            after = len(turn.lines) - 1
            patience_s = self._random.choice((0.05, 0.3, 2.0, _PATIENCE_S))
            try:
                async with asyncio.timeout(patience_s):
                    await self._request(
                        lambda service, after=after: self._read(service, turn, after)  # type: ignore[misc]
                    )
            except AccessRevoked:
                raise
            except _OUTAGES:
                self._history.counts["outages"] += 1
                await asyncio.sleep(self._random.uniform(0, _RETRY_S))
                continue
            except TimeoutError:
                self._history.counts["resumed"] += 1
                if patience_s == _PATIENCE_S:
                    raise Violation(f"a reader of {turn.id} heard nothing") from None
                continue
            if await self._retrieve(turn):
                return
            await asyncio.sleep(_RETRY_S)

    async def _read(self, service: Service, turn: Turn, after: int) -> None:
        """Read events in the server's process, as its stream does."""
        attempt = turn.reader = object()
        async with aclosing(service.event_logs.follow(TENANT, turn.id, after)) as batches:
            async for lines in batches:
                if turn.reader is attempt:
                    for line in lines:
                        number = json.loads(line)["sequence_number"]
                        if number != len(turn.lines):
                            raise Violation(
                                f"{turn.id}: event {number} comes after {len(turn.lines) - 1}"
                            )
                        turn.lines.append(line)

    async def _retrieve(self, turn: Turn) -> bool:
        """Retrieve the response. Returns whether it has ended."""
        try:
            found = await self._ask(
                f"the state of {turn.text}", lambda service: service.retrieve(TENANT, turn.id)
            )
        except RequestError:
            if not turn.deleted:
                raise Violation(f"{turn.id} is gone") from None
            return True
        if turn.terminal is not None and found != turn.terminal:
            raise Violation(f"{turn.id} changed after its end: {turn.terminal} became {found}")
        if found.status in _ENDED:
            turn.terminal = found
        return turn.terminal is not None

    async def _poll(self, turn: Turn) -> None:
        output = 0
        while turn.terminal is None and not turn.deleted:
            await asyncio.sleep(self._random.uniform(0, 2))
            found = await self._ask(
                f"a poll of {turn.text}", lambda service: service.retrieve(TENANT, turn.id)
            )
            answer_text = sum(len(text_of(item)) for item in found.output)
            if answer_text < output:
                raise Violation(f"{turn.id} lost output")
            output = answer_text
            if found.status in _ENDED and turn.terminal is None:
                turn.terminal = found

    async def _cancel(self, turn: Turn) -> None:
        await asyncio.sleep(self._random.expovariate(1 / 0.3))
        turn.cancelled = True
        found = await self._ask(
            f"the cancellation of {turn.text}", lambda service: service.cancel(TENANT, turn.id)
        )
        if found.status in _ENDED and turn.terminal is None:
            turn.terminal = found

    async def _steer(self, turn: Turn) -> None:
        """Steer the response, and follow its successor."""
        await asyncio.sleep(self._random.expovariate(1 / 0.3))
        text = f"{turn.text.partition(' ')[0]}.steered"
        message = Message(role="user", content=(InputText(text=text),))
        try:
            submission = await self._ask(
                f"the steering of {turn.text}",
                lambda service: service.steer(TENANT, turn.id, (message,)),
            )
        except RequestError as error:
            if error.code != "response_already_completed":
                raise Violation(f"{turn.id} cannot be steered: {error.message}") from error
            return
        self._history.counts["steered"] += 1
        while (
            found := await self._ask("a steered end", self._state_of(turn.id))
        ).status not in _ENDED:
            await asyncio.sleep(_RETRY_S)
        inputs = await self._ask(
            "the input of a successor",
            lambda service: service.input_items(
                TENANT, submission.successor_id, PageParams(limit=100, order="asc")
            ),
        )
        *seen, last = user_texts(inputs.data)
        can_continue = found.status in _RESPONSES_WITH_ITEMS
        successor = Turn(
            text=last if can_continue else f"{last} fails",
            key=self.name,
            background=True,
            seen=tuple(seen),
            id=submission.successor_id,
        )
        self._history.turns.append(successor)
        await self._follow(successor)

    def _state_of(self, response_id: str) -> Callable[[Service], Awaitable[Response]]:
        return lambda service: service.retrieve(TENANT, response_id)

    async def _delete(self, turn: Turn) -> None:
        await asyncio.sleep(self._random.expovariate(1 / 0.3))
        await self._delete_now(turn)

    async def _delete_now(self, turn: Turn) -> None:
        turn.deleted = turn.cancelled = self._deletes = True
        try:
            await self._ask(
                f"the deletion of {turn.text}", lambda service: service.delete(TENANT, turn.id)
            )
        except RequestError:
            return  # an attempt whose answer was lost has deleted it

    # --- foreground ------------------------------------------------------------------------------

    async def _foreground(self, turn: Turn) -> None:
        request = self._body(turn)
        sink = _Sink()

        async def stream(service: Service) -> Response:
            run = await service.create(TENANT, request, client=self._sender)
            turn.id = run.id
            return await run.drive(sink)

        leaves_s = self._random.choice((0.05, 0.3, 60.0, 60.0, 60.0))
        self.waits_for = f"the answer of {turn.text}"
        try:
            async with asyncio.timeout(leaves_s):
                response = await self._request(stream)
        except AccessRevoked:
            raise
        except (*_OUTAGES, TimeoutError):
            # The client does not know whether the response was stored, and goes on without it.
            self._history.counts["foreground lost"] += 1
            return
        except RequestError as error:
            return await self._handle_refusal(turn, error)
        turn.lines = [_encode(event) for event in sink.events]
        turn.terminal = response


async def create_conversation(client_servers: Sequence[Server], random: Random) -> str:
    """Create a conversation for clients to share."""
    while True:
        try:
            created = await random.choice(client_servers).request(
                lambda service: service.conversations.create(TENANT, CreateConversation())
            )
            return created.id
        except _OUTAGES:
            await asyncio.sleep(_RETRY_S)

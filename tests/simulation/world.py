"""One simulation: servers, clients and faults from a seed, and the invariants at its end."""

from __future__ import annotations

import asyncio
import gc
import math
import traceback
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from functools import reduce
from operator import or_
from random import Random
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.store.keys import KeyRecord
from antiphon.store.records import ConversationLock, Reservation
from antiphon.stream.event_grammar import check
from antiphon.stream.fold import fold
from antiphon.testing.memory_store import locks
from antiphon.wire import items as it
from antiphon.wire.events import EVENTS, Event

from .clients import TENANT, Client, History, Turn, Violation, create_conversation
from .crash_points import CrashPoint
from .database import Database, ProcessState
from .engine import TOOLS, Toolbox, answer_to, text_of, user_texts
from .loop import LoopStuck, SimulationLoop
from .processes import EPOCH, LEASE_S, Process, Server, current_process

#: The part of the journal's calls during which something breaks.
_STRIKES = 0.15
#: Virtual seconds with faults, and the limit for the rest.
_FAULTS_S = 12.0
_REST_S = 400.0
#: Breaks something at a server, and repairs it.
_Fault = Callable[[Server], Awaitable[None]]
_decode = msgspec.json.Decoder(reduce(or_, EVENTS.values())).decode
#: Every so many seeds have a quota of responses. It is tightened in half of them.
_SEEDS_PER_QUOTA = 5
#: Virtual seconds after which a tightened quota holds: until then, calls that were on their way
#: with the former quota take effect.
_QUOTA_DELAY_S = 9.0
#: The part of seeds in which the API key of a client is revoked, and the virtual seconds after
#: which nothing runs for it any more. They count from the last fault, which may leave a run without
#: a server.
_REVOCATIONS = 0.4
_ACCESS_DELAY_S = 10.0
#: Iterations of the loop between two crashes, on average.
_ITERATIONS_PER_CRASH = (300, 1000, None, None)
#: Logged with a traceback when the store does not answer.
_EXPECTED_ERRORS = ("expired responses could not be deleted",)
_TERMINAL_EVENTS = tuple(
    EVENTS[f"response.{status}"] for status in ("completed", "incomplete", "failed")
)


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of one seed. ``violation``: the first broken invariant; None if all hold.
    ``crash_points``: where servers crashed. ``fingerprint``: a digest of everything that happened;
    equal for equal seeds."""

    seed: int
    violation: str | None
    counts: dict[str, int]
    crash_points: frozenset[CrashPoint]
    virtual_s: float
    fingerprint: int


def simulate(seed: int, new_world: Callable[[int, Random], World] | None = None) -> Outcome:
    """Run the simulation of a seed. ``new_world`` makes the actors; by default, they are random."""
    random = Random(seed)
    loop = SimulationLoop(random, shuffles=random.random() < 0.5)
    world = (new_world or World)(seed, random)
    violation: str | None = None
    with _simulated(loop) as logs:
        try:
            loop.run_until_complete(world.run())
            world.check_logs(logs, loop.unhandled)
        except Violation as error:
            violation = str(error)
        except LoopStuck as error:
            violation = f"{error}; {world.waiting()}"
        except Exception as error:
            violation = "".join(traceback.format_exception(error)[-3:])
        finally:
            virtual_s = loop.time()
            _discard(loop)
    return Outcome(
        seed=seed,
        violation=violation,
        counts=dict(world.history.counts),
        crash_points=frozenset(point for each in world.servers for point in each.crash_points),
        virtual_s=virtual_s,
        fingerprint=world.fingerprint(),
    )


@contextmanager
def _simulated(loop: SimulationLoop) -> Iterator[list[Any]]:
    """Use the loop and its time. Yields the list of log entries."""
    collects = gc.isenabled()
    gc.disable()  # what a collection finalizes would depend on what ran before
    clock = vars(locks)["time"]
    vars(locks)["time"] = _Clock(loop)
    asyncio.set_event_loop(loop)
    loop.on_task = _register
    try:
        with structlog.testing.capture_logs() as entries:
            yield entries
    finally:
        vars(locks)["time"] = clock
        asyncio.set_event_loop(None)
        loop.close()
        if collects:
            gc.enable()


def _register(task: asyncio.Task[Any]) -> None:
    process = current_process.get()
    if process is not None:
        process.tasks.append(task)


class _Clock:
    """Stands in for the module ``time``."""

    def __init__(self, loop: SimulationLoop) -> None:
        self.monotonic = loop.time


def _discard(loop: SimulationLoop) -> None:
    """End all tasks that a violation left behind."""
    for _ in range(100):
        pending = [task for task in loop.tasks if not task.done()]
        if not pending:
            return
        for task in pending:
            task.cancel()
        loop.call_soon(loop.stop)
        try:
            loop.run_forever()
        except LoopStuck:
            break
    for task in pending:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


class World:
    """The actors of one simulation."""

    def __init__(self, seed: int, random: Random) -> None:
        self._seed = seed
        self._random = random
        self.history = History()
        #: Violations that engines and tools noticed.
        self._broken: list[str] = []
        self._toolbox = Toolbox(random, self._broken)
        self.servers: list[Server] = []
        self._clients: list[Client] = []
        self._strikes: set[asyncio.Task[None]] = set()
        has_quota = seed % _SEEDS_PER_QUOTA == 0
        self._max_responses = Random(seed).randint(1, 6) if has_quota else None
        #: The most responses that there may be, and when a tightened quota begins to hold.
        self._ceiling = self._max_responses
        self._tightened_at = math.inf
        #: The API key that was revoked, and when.
        self._revoked: str | None = None
        self._revoked_at = math.inf
        #: How many faults there are now, and when the last one ended.
        self._active_faults = 0
        self._quiet_since = 0.0

    async def run(self) -> None:
        random = self._random
        quotas = TenantQuotas(default=Quotas(max_responses=self._max_responses))
        await self._start_servers(random.choice((2, 2, 3, 4)), quotas)
        self._database.on_journal_call = self._strike_later
        conversation = self._conversation
        for number in range(random.randint(2, 5)):
            kind = random.random()
            self._clients.append(
                Client(
                    f"c{number}",
                    self.servers,
                    self.history,
                    random,
                    turns=random.randint(1, 3),
                    conversation=conversation if kind < 0.4 else None,
                    chained=kind > 0.6,
                )
            )
        for client in self._clients:
            client.steers = self._max_responses is None
            await self._database.store.keys.create(key_record(client.name))
        strikes_every = random.choice(_ITERATIONS_PER_CRASH)
        if strikes_every is not None:
            self._strike_between_awaits(strikes_every)
        changes = [self._tighten(quotas)] if self._max_responses is not None else []
        if random.random() < _REVOCATIONS:
            client = random.choice(self._clients)
            client.loses_access = True
            changes.append(self._revoke(client.name))
        changing = [asyncio.create_task(change) for change in changes]
        clients = [asyncio.create_task(client.run()) for client in self._clients]
        faults = asyncio.create_task(self._faults(clients))
        await self._wait(clients, faults)
        for change in changing:
            change.cancel()
        await self._end()

    async def _start_servers(self, count: int, quotas: TenantQuotas) -> None:
        """Start the database and the servers, and create a conversation."""
        random, loop = self._random, asyncio.get_running_loop()
        self._database = database = Database(random, lambda: EPOCH + loop.time())
        database.on_effect = self._check_effect
        self._toolbox.on_start = self._check_start
        self.servers = [
            Server(number, database, random, self._toolbox, self._broken, quotas)
            for number in range(count)
        ]
        self._conversation = await create_conversation(self.servers, random)

    async def _end(self) -> None:
        """Check all invariants, and stop the servers."""
        await self._wait_for_leases()
        await self._check_locks()
        await self._check_reservations()
        self._check()
        for server in self.servers:
            await server.stop(Process.crash)

    async def _wait(self, clients: list[asyncio.Task[None]], faults: asyncio.Task[None]) -> None:
        """Wait for the clients. Raises ``Violation`` if one fails or does not end."""
        done, pending = await asyncio.wait(
            [*clients, faults], timeout=_FAULTS_S + _REST_S, return_when="FIRST_EXCEPTION"
        )
        for task in (*clients, faults):
            if task in done:
                task.result()
        if pending:
            raise Violation(f"clients do not end: {self.waiting()}")

    def waiting(self) -> str:
        """What each client waits for."""
        return ", ".join(f"{client.name} waits for {client.waits_for}" for client in self._clients)

    # --- faults ----------------------------------------------------------------------------------

    async def _faults(self, clients: Sequence[asyncio.Task[None]]) -> None:
        """Break something now and then, and in the end repair everything. The end has come when
        all clients are done, too: nothing is left that a fault could break."""
        random, loop = self._random, asyncio.get_running_loop()
        pause_s = random.choice((0.5, 1.5, 4.0))
        for server in self.servers:
            if random.random() < 0.3:
                server.clock_error_s = random.choice((-3600.0, -30.0, 30.0, 1e6, 1e8))
        while loop.time() < _FAULTS_S and not all(client.done() for client in clients):
            await asyncio.sleep(random.expovariate(1 / pause_s))
            kinds = (
                self._crash, self._crash, self._drain, self._pause_database, self._cut,
                self._lose_calls, self._cut_notices, self._slow,
            )  # fmt: skip
            fault = random.choice(kinds)
            await self._break(fault, random.choice(self.servers))
        for server in self.servers:
            server.start()

    async def _break(self, fault: _Fault, server: Server) -> None:
        self.history.counts[fault.__name__.strip("_")] += 1
        self._active_faults += 1
        await fault(server)
        self._active_faults -= 1
        self._quiet_since = asyncio.get_running_loop().time()

    async def _revoke(self, key: str) -> None:
        """Revoke an API key."""
        await self._some_time(3)
        await self._database.store.keys.delete(key)
        self.history.counts["revoked"] += 1
        self._revoked, self._revoked_at = key, asyncio.get_running_loop().time()

    async def _tighten(self, quotas: TenantQuotas) -> None:
        """Tighten the quota of responses."""
        if self._random.random() < 0.5:
            await self._some_time(2)
            assert self._max_responses is not None
            self._max_responses = self._random.randint(0, self._max_responses)
            self.history.counts["tightened"] += 1
            quotas.update(TenantQuotas(default=Quotas(max_responses=self._max_responses)))
            self._tightened_at = asyncio.get_running_loop().time() + _QUOTA_DELAY_S

    def _strike_between_awaits(self, every: int) -> None:
        """Let servers crash after numbers of steps of the loop, so that each await is as likely a
        place as any other. Crashes at random times hit those that wait."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)

        def strike() -> None:
            if loop.time() < _FAULTS_S:
                server = self._random.choice(self.servers)
                self._start_strike(self._break(self._crash, server))
                aim()

        def aim() -> None:
            loop.strike_at = loop.iterations + 1 + int(self._random.expovariate(1 / every))

        loop.on_strike = strike
        aim()

    def _start_strike(self, work: Coroutine[Any, Any, None]) -> None:
        strike = asyncio.get_running_loop().create_task(work, context=Context())
        self._strikes.add(strike)
        strike.add_done_callback(self._strikes.discard)

    def _strike_later(self, process: ProcessState) -> None:
        """Sometimes, break something while a call of a tool begins or ends."""
        random, now = self._random, asyncio.get_running_loop().time()
        if random.random() > _STRIKES or now > _FAULTS_S:
            return
        server = next((each for each in self.servers if each.process is process), None)
        if server is not None:
            self._start_strike(self._strike(server))

    async def _strike(self, server: Server) -> None:
        await asyncio.sleep(self._random.expovariate(1 / self._random.choice((0.002, 0.3))))
        self.history.counts["struck"] += 1
        await self._break(self._random.choice((self._crash, self._cut, self._cut)), server)

    async def _crash(self, server: Server) -> None:
        await server.stop(Process.crash)
        await self._some_time(1)
        server.start()

    async def _drain(self, server: Server) -> None:
        grace_s = self._random.choice((0.0, 0.2, 3.0))
        await server.stop(lambda process: process.drain(grace_s))
        server.start()

    async def _pause_database(self, server: Server) -> None:
        self._database.running.clear()
        await self._some_time(3)
        self._database.running.set()

    async def _cut(self, server: Server) -> None:
        server.network.is_cut = True
        await self._some_time(3)
        server.network.is_cut = False

    async def _lose_calls(self, server: Server) -> None:
        network = server.network
        network.fails_before = self._random.choice((0.0, 0.1, 0.4))
        network.answer_lost = self._random.choice((0.05, 0.3, 0.6))
        await self._some_time(2)
        network.fails_before = network.answer_lost = 0.0

    async def _cut_notices(self, server: Server) -> None:
        server.network.notices_cut = True
        await self._some_time(2)
        server.network.notices_cut = False

    async def _slow(self, server: Server) -> None:
        server.network.delay_s = self._random.choice((0.05, 0.5))
        await self._some_time(2)
        server.network.delay_s = 0.002

    async def _some_time(self, mean_s: float) -> None:
        await asyncio.sleep(min(self._random.expovariate(1 / mean_s), 4 * mean_s))

    # --- invariants ------------------------------------------------------------------------------

    def check_logs(self, logs: list[Any], unhandled: list[dict[str, Any]]) -> None:
        """Nothing unexpected was raised."""
        for entry in logs:
            if entry.get("exc_info") and entry["event"] not in _EXPECTED_ERRORS:
                raise Violation(f"an unexpected error was logged: {entry}")
        for context in unhandled:
            raise Violation(f"unhandled: {context.get('message')} {context.get('exception')!r}")

    def _responses(self) -> set[str]:
        rows = self._database.store.rows.items()
        return {id for (tenant, id), row in rows if tenant == TENANT and row.live}

    def _check_effect(self) -> None:
        """Check what must hold after each call to the database."""
        if not self._broken:
            now = asyncio.get_running_loop().time()
            self._check_quota(now)
            self._check_access(now)

    def _check_quota(self, now: float) -> None:
        """The responses of the tenant never exceed its quota. Once it was tightened, their number
        does not grow above it."""
        if self._ceiling is None or self._max_responses is None:
            return
        reservations = self._database.reservations
        stored = self._responses() - reservations.lapsed
        if len(stored) > self._ceiling:
            self._broken.append(
                f"{len(stored)} responses at {now:.1f} s, but the quota is {self._ceiling}"
            )
        if now > self._tightened_at:
            count = len(stored.union(reservations.reserved.get(TENANT, ())))
            self._ceiling = max(self._max_responses, min(self._ceiling, count))

    def _has_no_access(self, now: float) -> bool:
        """Whether the revoked API key must have lost its access everywhere."""
        since = max(self._revoked_at, self._quiet_since)
        return not self._active_faults and now > since + _ACCESS_DELAY_S

    def _check_access(self, now: float) -> None:
        """No run goes on for a revoked API key."""
        if self._has_no_access(now):
            for turn in self.history.turns:
                run = self._database.store.runs.rows.get((TENANT, turn.id))
                if turn.key == self._revoked and run is not None and run.ended_at is None:
                    self._broken.append(f"{turn.id} goes on at {now:.1f} s, but its key is revoked")

    def _check_start(self, response_id: str) -> None:
        """No tool starts for a revoked API key."""
        now = asyncio.get_running_loop().time()
        if self._has_no_access(now):
            for turn in self.history.turns:
                if turn.key == self._revoked and turn.id == response_id:
                    self._broken.append(f"a tool of {turn.id} starts at {now:.1f} s")

    async def _check_reservations(self) -> None:
        """No room stays reserved once every run has ended."""
        if not await self._database.store.reserve_response(
            Reservation(
                tenant=TENANT,
                response_id="nothing",
                owner="nobody",
                max_responses=len(self._responses()) + 1,
                max_bytes=None,
                lease_s=LEASE_S,
            )
        ):
            raise Violation("room stays reserved")

    async def _wait_for_leases(self) -> None:
        """Wait until every run has ended and nothing is locked or reserved any more, but not
        longer than leases last."""
        runs, reserved = self._database.store.runs, self._database.reservations.reserved
        for _ in range(10):
            await asyncio.sleep(LEASE_S / 2)
            is_idle = all(run.ended_at is not None for run in runs.rows.values())
            if is_idle and not runs.locks.held and not any(reserved.values()):
                return

    async def _check_locks(self) -> None:
        """Nothing is locked once every run has ended."""
        runs = self._database.store.runs
        for (tenant, conversation), (holder, _) in list(runs.locks.held.items()):
            if not await runs.lock_conversation(
                tenant, "nobody", ConversationLock(conversation, "nobody"), lease_s=LEASE_S
            ):
                raise Violation(f"the conversation {conversation} stays locked for {holder}")

    def _check(self) -> None:
        if self._broken:
            raise Violation("; ".join(self._broken))
        runs = self._database.store.runs
        for key, run in runs.rows.items():
            if run.ended_at is None:
                raise Violation(f"the run {key[1]} never ended")
            _check_log(key[1], [line for batch in run.batches for line in _lines(batch.lines)])
        for turn in self.history.turns:
            if turn.key == self._revoked and turn.background:
                self._complete(turn)
            self._check_turn(turn)
        self._check_conversation()

    def _complete(self, turn: Turn) -> None:
        """Add what a client could not read because its API key was revoked."""
        key = (TENANT, turn.id)
        row, run = self._database.store.rows.get(key), self._database.store.runs.rows.get(key)
        if row is not None and run is not None:
            turn.terminal = turn.terminal or row.stored.response
            lines = [line for batch in run.batches for line in _lines(batch.lines)]
            if turn.lines != lines[: len(turn.lines)]:
                raise Violation(f"a reader of {turn.id} got other events than those of its log")
            turn.lines = lines

    def _check_turn(self, turn: Turn) -> None:
        self.history.counts["turns"] += 1
        response = turn.terminal
        if response is None or turn.deleted:
            return
        self.history.counts[response.status] += 1
        if "breaks" in turn.text.split():
            self.history.counts[f"breaks, {response.status}"] += 1
        if response.status == "cancelled" and not turn.cancelled:
            raise Violation(f"{turn.id} was cancelled by nobody")
        if not _is_unstored(turn):
            row = self._database.store.rows.get((TENANT, turn.id))
            if row is None or row.stored.response != response:
                raise Violation(f"{turn.id}: the store has {row and row.stored.response}")
        if response.status == "failed" and not {"fails", "breaks"} & set(turn.text.split()):
            _check_interruption(turn, is_revoked=turn.key == self._revoked)
        events = _check_log(turn.id, turn.lines)
        log = fold(events)
        ends = [event for event in events if isinstance(event, _TERMINAL_EVENTS)]
        if response.status != "cancelled" and (len(ends) != 1 or ends[0] is not events[-1]):
            raise Violation(f"{turn.id} has {len(ends)} terminal events")
        if log.output != response.output or (ends and log != response):
            raise Violation(f"{turn.id}: GET {response} is not the fold of its events {log}")
        self._check_output(turn)

    def _check_output(self, turn: Turn) -> None:
        response = turn.terminal
        assert response is not None
        written = [item for item in response.output if isinstance(item, it.Message)]
        messages = [text_of(item) for item in written]
        calls = [item for item in response.output if isinstance(item, it.McpCall)]
        names = [call.name for call in calls]
        # A model without tokens begins its answer again after an interruption.
        may_restart = turn.background and "tokens" not in turn.text.split()
        begun = sum(item.status == "incomplete" for item in written[:-1]) if may_restart else 0
        if len(set(names)) != len(names) or len(messages) > begun + 1 or begun > 3:
            raise Violation(f"{turn.id} has the calls {names} and {len(messages)} messages")
        started = self._toolbox.starts.get(turn.id, Counter())
        # A call that only reads may start before its item is stored.
        if unseen := started.keys() - {call.id for call in calls} - self._toolbox.reads:
            raise Violation(f"{turn.id} does not show the calls {unseen}")
        for call in calls:
            self._check_call(turn, call)
        for program in it.of_type(response.output, it.ProgramOutput):
            self.history.counts[f"program {program.status}"] += 1
        if turn.conversation is not None:
            return
        whole = answer_to((*turn.seen, turn.text))
        if response.status == "completed" and messages[begun:] != [whole]:
            raise Violation(f"{turn.id} says {messages}, not {whole!r}")
        if not all(whole.startswith(message) for message in messages):
            raise Violation(f"{turn.id} says {messages}, which does not begin {whole!r}")

    def _check_call(self, turn: Turn, call: it.McpCall) -> None:
        """A call happened as often as its item says."""
        starts = self._toolbox.starts.get(turn.id, Counter())[call.id]
        effects = self._toolbox.effects[call.id]
        error = "" if call.error is None else call.error["message"]
        is_unknown, is_refused = error.startswith("unknown"), "was not done" in error
        repeats = TOOLS[call.name] != "any" or turn.interrupted_tools == "retry"
        state = f"{turn.id}: {call} was started {starts} times, with {effects} effects"
        self.history.counts[f"{call.name} {'unknown' if is_unknown else call.status}"] += 1
        if starts > 1:
            self.history.counts[f"{call.name} repeated"] += 1
        if (starts > 1 or is_unknown) and repeats == is_unknown:
            raise Violation(state)
        if is_refused and starts:
            raise Violation(state)
        if call.status == "completed":
            expected = {"pay": 1, "look": 0}.get(call.name, starts if repeats else 1)
            if not starts or effects != expected:
                raise Violation(state)

    def _check_conversation(self) -> None:
        """Each answer saw exactly what precedes it, and each announced turn is there once."""
        row = self._database.store.conversations[TENANT, self._conversation]
        items = list(row.items.values())
        for index, item in enumerate(items):
            if isinstance(item, it.Message) and item.role == "assistant":
                expected = answer_to(user_texts(items[:index]))
                if item.status == "completed" and text_of(item) != expected:
                    raise Violation(
                        f"the conversation is not linear: {text_of(item)!r}, not {expected!r}"
                    )
        output = Counter(user_texts(items))
        for turn in self.history.turns:
            is_known = turn.terminal is not None and not _is_unstored(turn)
            if turn.conversation is not None and turn.terminal is not None and is_known:
                count = int(turn.terminal.status in ("completed", "incomplete"))
                if output[turn.text] != count:
                    raise Violation(
                        f"{turn.text} ({turn.terminal.status}) is {output[turn.text]} times in the "
                        "conversation"
                    )

    def fingerprint(self) -> int:
        """A digest of what the clients saw."""
        observed = [
            (turn.id, turn.terminal.status if turn.terminal else None, b"".join(turn.lines))
            for turn in self.history.turns
        ]
        return zlib.crc32(repr((observed, sorted(self.history.counts.items()))).encode())


def key_record(name: str) -> KeyRecord:
    return KeyRecord(name=name, sha256="", tenant=TENANT, created_at=EPOCH)


def _lines(lines: bytes) -> list[bytes]:
    return lines.split(b"\n")[:-1]


def _check_log(response_id: str, lines: list[bytes]) -> list[Event]:
    """Check that a log is contiguous and grammatical. Returns its events."""
    events = [_decode(line) for line in lines]
    numbers = [event.sequence_number for event in events]
    if numbers != list(range(len(numbers))):
        raise Violation(f"{response_id}: the log has the events {numbers}")
    try:
        check(events)
    except Exception as error:
        raise Violation(f"{response_id}: {error}") from error
    return events


def _is_unstored(turn: Turn) -> bool:
    """A foreground response that failed may be missing: the store did not answer. If only the
    answer to its save was lost, it is stored as completed."""
    return not turn.background and turn.terminal is not None and turn.terminal.status == "failed"


def _check_interruption(turn: Turn, *, is_revoked: bool) -> None:
    """A run may fail only where it cannot be continued, the store refuses, or its API key was
    revoked."""
    assert turn.terminal is not None and turn.terminal.error is not None
    error = turn.terminal.error.message
    expected = ("cannot be continued", "store does not answer", "server was stopped")
    if turn.conversation is not None and not turn.background:
        expected = (*expected, "was not added")
    if turn.interrupted_tools == "fail":
        expected = (*expected, "may or may not have been done")
    if is_revoked:
        expected = (*expected, "is no longer valid")
    if not any(words in error for words in expected):
        raise Violation(f"{turn.id} failed: {error}")
    # A run that was claimed often without a step fails: it may be what ends its servers. Claims
    # whose answers were lost count too.
    gives_up = "interrupted too often" in error
    has_tokens = turn.background and "tokens" in turn.text.split()
    if has_tokens and "cannot be continued" in error and not gives_up:
        raise Violation(f"{turn.id} tells its tokens, but failed: {error}")

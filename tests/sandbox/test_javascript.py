"""JavaScript programs: allowed features, error messages, limits and determinism."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.sandbox.javascript import CallOutcome, JavaScript, ProgramCall, ProgramState
from tests.hypothesis_settings import examples

PATHS = (("look",), ("crm", "find"), ("a-b",))


@pytest.fixture(scope="module")
def javascript() -> Iterator[JavaScript]:
    javascript = JavaScript(step_s=30, memory_bytes=16 << 20)
    yield javascript
    javascript.close()


@pytest.fixture(scope="module")
def impatient_javascript() -> Iterator[JavaScript]:
    javascript = JavaScript(step_s=0.2)
    yield javascript
    javascript.close()


@pytest.fixture
def patient_javascript() -> Iterator[JavaScript]:
    javascript = JavaScript(step_s=3600)
    yield javascript
    javascript.close()


def outcomes(*values: object) -> list[CallOutcome]:
    return [CallOutcome(json.dumps(value)) for value in values]


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("text('a', 1, {b: [2]}); text(null)", 'a 1 {"b":[2]}\nnull'),
        ("return {a: 1}", '{"a":1}'),
        ("queueMicrotask(() => { throw 1 }); await null; await null; text('on')", "on"),
        ("console.log('x'); console.error('y')", "x\ny"),
        ("const x = await Promise.resolve(3); text(x)", "3"),
        ("text(undefined, () => 1)", "undefined () => 1"),
        ("text('\\ud800!')", "\ufffd!"),
        ("for (let n = 0; n < 50000; n++) await null; text('done')", "done"),
        ("text(typeof process, typeof require, typeof fetch, typeof setTimeout)", "undefined " * 4),
    ],
)
async def test_output_of_a_program(javascript: JavaScript, code: str, output: str) -> None:
    assert await javascript.advance(code, PATHS) == ProgramState(output=output.rstrip(" "))


async def test_program_waits_for_calls_and_continues_with_their_outcomes(
    javascript: JavaScript,
) -> None:
    code = """const [a, b] = await Promise.all([tools.look({n: 1}), tools.crm.find("Ann")]);
const c = await tools["a-b"](a + b);
text(c);"""
    first = await javascript.advance(code, PATHS)
    assert first.pending_calls == (
        ProgramCall(("look",), '{"n":1}'),
        ProgramCall(("crm", "find"), '"Ann"'),
    )
    second = await javascript.advance(code, PATHS, outcomes(1, 2))
    assert second.pending_calls == (ProgramCall(("a-b",), "3"),)
    assert await javascript.advance(code, PATHS, outcomes(1, 2, "x")) == ProgramState(output="x")


async def test_failed_call_throws_in_the_program(javascript: JavaScript) -> None:
    no = CallOutcome(json.dumps("not there"), failed=True)
    code = "try { await tools.look() } catch (e) { text(e instanceof Error, e.message) }"
    assert (await javascript.advance(code, PATHS, [no])).output == "true not there"
    state = await javascript.advance("text(1)\nawait tools.look()", PATHS, [no])
    assert state.output == "1" and state.error is not None and "not there" in state.error


async def test_call_that_is_not_awaited_is_still_made(javascript: JavaScript) -> None:
    code = "tools.look({}); text('over')"
    state = await javascript.advance(code, PATHS)
    assert state.pending_calls and state.output == "over"
    assert await javascript.advance(code, PATHS, outcomes(1)) == ProgramState(output="over")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("let x = ;", "SyntaxError"),
        ("import fs from 'fs'", "SyntaxError"),
        ("await import('fs')", "could not load"),
        ("\n\nnull.x", "(line 3)"),
        ("tools.nothing()", "There is no tools.nothing."),
        ("tools.crm.nothing()", "There is no tools.crm.nothing."),
        ("tools.look(() => 1)", "does not accept a function"),
        ("image('x')", "use text()"),
        ("throw 'words'", "words"),
        ("await new Promise(() => {})", "never comes"),
        ("const f = () => f() + 1; f()", "was aborted"),
        ("const a = []; for (;;) a.push(new Uint8Array(1 << 20))", "memory"),
        ("const a = []; for (;;) a.push({})", "memory"),
        ("for (;;) text('x'.repeat(1e6))", "memory"),
        ("for (;;) tools.look('x')", "memory"),
        ("new Uint8Array(1e9)", "memory"),
        ("const o = {}; o.o = o; text(o)", "circular"),
        ("text(1n)", "BigInt"),
        ("globalThis.__program = null; await 1", "was aborted"),
        ("globalThis.__program.step = () => '{\"output\": 7}'", "was aborted"),
        ("globalThis.__program.step = () => 'x'.repeat(1e6)", "was aborted"),
        ("JSON.parse = Promise = Array = null; Promise.all()", "TypeError"),
    ],
)
async def test_failing_program_reports_the_cause(
    javascript: JavaScript, code: str, message: str
) -> None:
    state = await javascript.advance(code, PATHS)
    assert state.error is not None and message in state.error and not state.pending_calls


@pytest.mark.parametrize(
    "code", ["for (;;) {}", "for (;;) await null", "/(a+)+$/.test('a'.repeat(40) + 'b')"]
)
async def test_endless_program_is_stopped(impatient_javascript: JavaScript, code: str) -> None:
    state = await impatient_javascript.advance(f"text('so far'); {code}", PATHS)
    assert state.output in ("so far", "")  # the output may be unreadable after a trap
    assert state.error == "It took too long and was stopped."


TIME_AND_RANDOM = """
text(Math.random(), Math.random(), Date.now(), new Date(), new Date(5).getTime());
text(Date(), typeof performance, new Date() instanceof Date, Date.UTC(1970, 0));"""


async def test_clock_and_random_numbers_are_deterministic(javascript: JavaScript) -> None:
    first, again, later = [
        (await javascript.advance(TIME_AND_RANDOM, (), time_ms=at)).output
        for at in (10**12, 10**12, 10**12 + 1)
    ]
    assert first == again != later
    random, other, now, today, given = first.splitlines()[0].split()
    assert 0 <= float(random) < 1 and random != other
    assert (now, today, given) == (str(10**12), '"2001-09-09T01:46:40.000Z"', "5")
    assert first.splitlines()[1].endswith("undefined true 0")


async def test_programs_do_not_share_globals(javascript: JavaScript) -> None:
    await javascript.advance("globalThis.mine = 1; Array.prototype.mine = 2", ())
    state = await javascript.advance("text(typeof mine, [].mine)", ())
    assert state.output == "undefined undefined"


async def test_cancelling_the_call_stops_the_program(patient_javascript: JavaScript) -> None:
    javascript = patient_javascript
    waiting = [asyncio.create_task(javascript.advance("for (;;) {}", ())) for _ in range(6)]
    queued = asyncio.create_task(javascript.advance("return 2", ()))
    for _ in range(5):
        await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    async with asyncio.timeout(60):  # the programs themselves may take all places for an hour
        assert (await queued).output == "2"
    assert all(each.cancelled() for each in waiting)


VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()


@examples(10)
@given(st.recursive(VALUES, st.lists))
def test_values_round_trip_through_a_program(javascript: JavaScript, value: object) -> None:
    """A value passes unchanged from a call outcome into a program and from its output back."""

    async def echo() -> ProgramState:
        return await javascript.advance("text([await tools.look({})])", PATHS, outcomes(value))

    assert json.loads(asyncio.run(echo()).output) == [value]

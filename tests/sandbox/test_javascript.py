"""JavaScript that nobody has read: what it may do, what it is told, and that it always does the
same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.sandbox.javascript import Answer, Asked, JavaScript, Stage
from tests.searching import examples

PATHS = (("look",), ("crm", "find"), ("a-b",))


@pytest.fixture(scope="module")
def javascript() -> Iterator[JavaScript]:
    javascript = JavaScript(step_s=30, memory_bytes=16 << 20)
    yield javascript
    javascript.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[JavaScript]:
    javascript = JavaScript(step_s=0.2)
    yield javascript
    javascript.close()


def answered(*values: object) -> list[Answer]:
    return [Answer(json.dumps(value)) for value in values]


@pytest.mark.parametrize(
    ("code", "said"),
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
async def test_what_a_program_puts_out(javascript: JavaScript, code: str, said: str) -> None:
    assert await javascript.advance(code, PATHS) == Stage(said=said.rstrip(" "))


async def test_it_waits_for_what_it_asked_and_goes_on_with_the_answers(
    javascript: JavaScript,
) -> None:
    code = """const [a, b] = await Promise.all([tools.look({n: 1}), tools.crm.find("Ann")]);
const c = await tools["a-b"](a + b);
text(c);"""
    first = await javascript.advance(code, PATHS)
    assert first.asked == (Asked(("look",), '{"n":1}'), Asked(("crm", "find"), '"Ann"'))
    second = await javascript.advance(code, PATHS, answered(1, 2))
    assert second.asked == (Asked(("a-b",), "3"),)
    assert await javascript.advance(code, PATHS, answered(1, 2, "x")) == Stage(said="x")


async def test_what_failed_is_thrown(javascript: JavaScript) -> None:
    no = Answer(json.dumps("not there"), failed=True)
    code = "try { await tools.look() } catch (e) { text(e instanceof Error, e.message) }"
    assert (await javascript.advance(code, PATHS, [no])).said == "true not there"
    stage = await javascript.advance("text(1)\nawait tools.look()", PATHS, [no])
    assert stage.said == "1" and stage.error is not None and "not there" in stage.error


async def test_a_call_that_nobody_awaits_is_made(javascript: JavaScript) -> None:
    code = "tools.look({}); text('over')"
    stage = await javascript.advance(code, PATHS)
    assert stage.asked and stage.said == "over"
    assert await javascript.advance(code, PATHS, answered(1)) == Stage(said="over")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("let x = ;", "SyntaxError"),
        ("import fs from 'fs'", "SyntaxError"),
        ("await import('fs')", "could not load"),
        ("\n\nnull.x", "(line 3)"),
        ("tools.nothing()", "There is no tools.nothing."),
        ("tools.crm.nothing()", "There is no tools.crm.nothing."),
        ("tools.look(() => 1)", "takes no function"),
        ("image('x')", "put out text"),
        ("throw 'words'", "words"),
        ("await new Promise(() => {})", "never comes"),
        ("const f = () => f() + 1; f()", "broke off"),
        ("const a = []; for (;;) a.push(new Uint8Array(1 << 20))", "memory"),
        ("const a = []; for (;;) a.push({})", "memory"),
        ("for (;;) text('x'.repeat(1e6))", "memory"),
        ("for (;;) tools.look('x')", "memory"),
        ("new Uint8Array(1e9)", "memory"),
        ("const o = {}; o.o = o; text(o)", "circular"),
        ("text(1n)", "BigInt"),
        ("globalThis.__program = null; await 1", "broke off"),
        ("globalThis.__program.step = () => '{\"said\": 7}'", "broke off"),
        ("globalThis.__program.step = () => 'x'.repeat(1e6)", "broke off"),
        ("JSON.parse = Promise = Array = null; Promise.all()", "TypeError"),
    ],
)
async def test_what_breaks_off_says_why(javascript: JavaScript, code: str, why: str) -> None:
    stage = await javascript.advance(code, PATHS)
    assert stage.error is not None and why in stage.error and not stage.asked


@pytest.mark.parametrize(
    "code", ["for (;;) {}", "for (;;) await null", "/(a+)+$/.test('a'.repeat(40) + 'b')"]
)
async def test_what_does_not_end_is_stopped(hasty: JavaScript, code: str) -> None:
    stage = await hasty.advance(f"text('so far'); {code}", PATHS)
    assert stage.said in ("so far", "")  # what it had put out may be out of reach
    assert stage.error == "It took too long and was stopped."


CHANCE = """text(Math.random(), Math.random(), Date.now(), new Date(), new Date(5).getTime());
text(Date(), typeof performance, new Date() instanceof Date, Date.UTC(1970, 0));"""


async def test_time_stands_still_and_chance_is_the_same(javascript: JavaScript) -> None:
    first, again, later = [
        (await javascript.advance(CHANCE, (), at=at)).said for at in (10**12, 10**12, 10**12 + 1)
    ]
    assert first == again != later
    chance, other, now, today, given = first.splitlines()[0].split()
    assert 0 <= float(chance) < 1 and chance != other
    assert (now, today, given) == (str(10**12), '"2001-09-09T01:46:40.000Z"', "5")
    assert first.splitlines()[1].endswith("undefined true 0")


async def test_nothing_is_left_of_a_program(javascript: JavaScript) -> None:
    await javascript.advance("globalThis.mine = 1; Array.prototype.mine = 2", ())
    stage = await javascript.advance("text(typeof mine, [].mine)", ())
    assert stage.said == "undefined undefined"


async def test_whoever_no_longer_waits_stops_it(javascript: JavaScript) -> None:
    waiting = [asyncio.create_task(javascript.advance("for (;;) {}", ())) for _ in range(6)]
    queued = asyncio.create_task(javascript.advance("return 2", ()))
    for _ in range(5):
        await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    async with asyncio.timeout(20):  # all places were taken, for longer than that
        assert (await queued).said == "2"
    assert all(each.cancelled() for each in waiting)


VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()


@examples(10)
@given(st.recursive(VALUES, st.lists))
def test_values_come_as_they_went(javascript: JavaScript, value: object) -> None:
    """What an answer holds is what a program gets, and what it puts out is what we read."""

    async def echoed() -> Stage:
        return await javascript.advance("text([await tools.look({})])", PATHS, answered(value))

    assert json.loads(asyncio.run(echoed()).said) == [value]

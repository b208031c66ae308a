"""The provider of programs: under the contract of tools, and what it tells the model of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.errors import InvalidRequest
from antiphon.sandbox.javascript import JavaScript
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.testing.tool_check import ToolTrial, check_tool
from antiphon.tools.allowed_callers import callable_by_model, callable_by_programs, check_callers
from antiphon.tools.base import ResponseContext
from antiphon.tools.programs.provider import ProgramProvider
from antiphon.wire import tools as tl

TOOL = tl.ProgrammaticToolCalling()
BOTH: Any = ("direct", "programmatic")
ONLY: Any = ("programmatic",)
OPENING = ResponseContext(tenant="t", response_id="r", items=())


@pytest.fixture(scope="module")
def programs() -> Iterator[ProgramProvider]:
    javascript = JavaScript(step_s=20)
    yield ProgramProvider(
        javascript, Encryptor([EncryptionKey.from_secret(bytes(32))]), clock=lambda: 1.0
    )
    javascript.close()


async def test_the_contract_of_tools(programs: ProgramProvider) -> None:
    trial = ToolTrial(
        tool=TOOL,
        successful_call=("program", "text(1)"),
        failing_call=("program", "throw 1"),
        hanging_call=("program", "for (;;) {}"),
        long_call=("program", "text('x'.repeat(1e6))"),
    )
    await check_tool(programs, trial)


def test_the_model_is_shown_what_it_can_call(programs: ProgramProvider) -> None:
    sku = {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}
    later = tl.Function(name="later", allowed_callers=BOTH, defer_loading=True)
    alone = tl.Function(name="alone", allowed_callers=ONLY, defer_loading=True)
    space = tl.Namespace(
        name="crm", tools=(tl.Custom(name="note", description="Notes.", allowed_callers=ONLY),)
    )
    stock = tl.Function(name="stock", parameters=sku, allowed_callers=ONLY)
    direct = tl.Function(name="direct")
    offers = callable_by_programs([stock, direct, later, alone, space])
    assert [each.tool.name for each in offers] == ["stock", "later", "alone", "note"]
    (offer,) = programs.compose(offers, OPENING).functions
    told = str(offer.tool.description)
    assert "tools.stock(args: { sku: string }): Promise<string>" in told
    assert "// Notes.\ntools.crm.note(input: string): Promise<string>" in told
    assert "tools.alone(): Promise<string>" in told  # nothing could find it
    assert "later" not in told and "direct" not in told


def test_its_name_is_one_that_nothing_else_has(programs: ProgramProvider) -> None:
    mine = callable_by_programs([tl.Function(name="program", allowed_callers=ONLY)])
    (offer,) = programs.compose(mine, OPENING).functions
    assert offer.tool.name == "program_"
    (offer,) = programs.compose((), OPENING).functions
    assert offer.tool.name == "program" and "nothing to call" in str(offer.tool.description)


def test_who_may_call_what() -> None:
    tools = [
        tl.Function(name="a"),
        tl.Function(name="b", allowed_callers=ONLY),
        tl.Namespace(name="n", tools=(tl.Function(name="c", allowed_callers=ONLY),)),
        tl.Namespace(
            name="m",
            tools=(tl.Function(name="d"), tl.Function(name="e", allowed_callers=ONLY)),
        ),
        tl.WebSearch(),
    ]
    kept = callable_by_model(tools)
    assert [getattr(tool, "name", "") for tool in kept] == ["a", "m", ""]
    assert isinstance(kept[1], tl.Namespace) and [each.name for each in kept[1].tools] == ["d"]
    check_callers([*tools, TOOL])
    with pytest.raises(InvalidRequest) as refused:
        check_callers(tools)
    assert refused.value.param == "tools[1].allowed_callers"
    with pytest.raises(InvalidRequest) as refused:
        check_callers([tools[2]])
    assert refused.value.param == "tools[0].tools[0].allowed_callers"

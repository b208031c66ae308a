"""The provider of programs: the tool contract and the function's description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.errors import InvalidRequest
from antiphon.sandbox.javascript import JavaScript
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.testing.tool_check import ToolCheckCase, check_tool
from antiphon.tools.allowed_callers import callable_by_model, callable_by_programs, check_callers
from antiphon.tools.base import ResponseContext
from antiphon.tools.programs.provider import ProgramProvider
from antiphon.wire import tools as tl

TOOL = tl.ProgrammaticToolCalling()
MODEL_AND_PROGRAMS: Any = ("direct", "programmatic")
PROGRAMS_ONLY: Any = ("programmatic",)
CONTEXT = ResponseContext(tenant="t", response_id="r", items=())


@pytest.fixture(scope="module")
def programs() -> Iterator[ProgramProvider]:
    javascript = JavaScript(step_s=20)
    yield ProgramProvider(
        javascript, Encryptor([EncryptionKey.from_secret(bytes(32))]), clock=lambda: 1.0
    )
    javascript.close()


async def test_provider_meets_the_tool_contract(programs: ProgramProvider) -> None:
    case = ToolCheckCase(
        tool=TOOL,
        successful_call=("program", "text(1)"),
        failing_call=("program", "throw 1"),
        hanging_call=("program", "for (;;) {}"),
        long_call=("program", "text('x'.repeat(1e6))"),
    )
    await check_tool(programs, case)


def test_description_declares_callable_functions(programs: ProgramProvider) -> None:
    sku = {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}
    deferred = tl.Function(name="later", allowed_callers=MODEL_AND_PROGRAMS, defer_loading=True)
    deferred_for_programs = tl.Function(
        name="alone", allowed_callers=PROGRAMS_ONLY, defer_loading=True
    )
    namespace = tl.Namespace(
        name="crm",
        tools=(tl.Custom(name="note", description="Notes.", allowed_callers=PROGRAMS_ONLY),),
    )
    stock = tl.Function(name="stock", parameters=sku, allowed_callers=PROGRAMS_ONLY)
    direct = tl.Function(name="direct")
    functions = callable_by_programs([stock, direct, deferred, deferred_for_programs, namespace])
    assert [each.tool.name for each in functions] == ["stock", "later", "alone", "note"]
    (function,) = programs.compose(functions, CONTEXT).functions
    description = str(function.tool.description)
    assert "tools.stock(args: { sku: string }): Promise<string>" in description
    assert "// Notes.\ntools.crm.note(input: string): Promise<string>" in description
    assert "tools.alone(): Promise<string>" in description  # nothing could find it
    assert "later" not in description and "direct" not in description


def test_function_name_avoids_collisions(programs: ProgramProvider) -> None:
    own_functions = callable_by_programs(
        [tl.Function(name="program", allowed_callers=PROGRAMS_ONLY)]
    )
    (function,) = programs.compose(own_functions, CONTEXT).functions
    assert function.tool.name == "program_"
    (function,) = programs.compose((), CONTEXT).functions
    assert function.tool.name == "program" and "nothing to call" in str(function.tool.description)


def test_allowed_callers_filter_tools() -> None:
    tools = [
        tl.Function(name="a"),
        tl.Function(name="b", allowed_callers=PROGRAMS_ONLY),
        tl.Namespace(name="n", tools=(tl.Function(name="c", allowed_callers=PROGRAMS_ONLY),)),
        tl.Namespace(
            name="m",
            tools=(tl.Function(name="d"), tl.Function(name="e", allowed_callers=PROGRAMS_ONLY)),
        ),
        tl.WebSearch(),
    ]
    direct_tools = callable_by_model(tools)
    assert [getattr(tool, "name", "") for tool in direct_tools] == ["a", "m", ""]
    assert isinstance(direct_tools[1], tl.Namespace) and [
        each.name for each in direct_tools[1].tools
    ] == ["d"]
    check_callers([*tools, TOOL])
    with pytest.raises(InvalidRequest) as error:
        check_callers(tools)
    assert error.value.param == "tools[1].allowed_callers"
    with pytest.raises(InvalidRequest) as error:
        check_callers([tools[2]])
    assert error.value.param == "tools[0].tools[0].allowed_callers"

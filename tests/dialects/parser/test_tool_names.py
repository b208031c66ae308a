"""The names that models write for a tool, and the tool that they mean."""

from __future__ import annotations

import pytest

from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.parser.tool_call import ToolShape, ToolShapes, meant_tool
from tests.dialects.parser.test_drifting_calls import calls_in, found_in
from tests.dialects.replies import SHAPES, write_calls

#: Formats in which a call may have no tag. Its name must then be exact.
UNMARKED = frozenset(
    {"functionary_v3_2", "granite_pythonic", "llama3_json", "llm_jp", "pythonic", "xlam"}
)
#: Formats in which a bracket ends the name, or a header repeats it.
NO_BRACKETS = frozenset(
    {"cwm", "functiongemma", "gemma4", "inkling", "lfm2", "llama4_pythonic", "olmo3"}
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("search", "search"),
        ("functions.search", "search"),
        ("tools.search", "search"),
        ("default_api:search", "search"),
        ("functions.functions.search", "search"),
        ("Search", "search"),
        ("search:", "search"),
        ('"search"', "search"),
        ("search()", "search"),
        ("search(query, limit)", "search"),
        ("getWeather", "get_weather"),
        ("get-weather", "get_weather"),
        ("calc.add", "mcp__calc__add"),
        ("mcp.calc.add", "mcp__calc__add"),
        ("add", "mcp__calc__add"),
    ],
)
def test_one_tool_is_meant(written: str, meant: str) -> None:
    assert meant_tool(written, SHAPES) == meant


@pytest.mark.parametrize(
    "written",
    [
        "",
        "()",
        "functions.",
        "files.search",
        "search_tool",
        "search(x)",
        'search("a")',
        "search(",
        "*",
    ],
)
def test_no_tool_is_meant(written: str) -> None:
    assert meant_tool(written, SHAPES) == ""


def test_several_tools_may_be_meant() -> None:
    tools = {
        name: ToolShape(wire_name=name.rpartition("__")[2])
        for name in ("find", "Find", "a__read", "b__read", "tools.find")
    }
    assert [meant_tool(name, tools) for name in ("find", "Find", "FIND", "read", "a.read")] == [
        "find",
        "Find",
        "",
        "",
        "a__read",
    ]
    assert meant_tool("tools.find", tools) == "tools.find"


def test_names_of_the_tools_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of an unknown tool does not read the names of all tools if an earlier one did."""
    tools = ToolShapes({f"tool_{number}": ToolShape(wire_name="t") for number in range(64)})
    assert meant_tool("unknown", tools) == ""
    read = list[str]()
    monkeypatch.setattr(ToolShapes, "items", lambda self: read.append("all") or iter(()))
    assert [meant_tool(name, tools) for name in ("unknown", "Tool-7", "t")] == ["", "tool_7", ""]
    assert not read


@pytest.mark.parametrize("written", ["tools.search", "search:", "Search"])
@pytest.mark.parametrize("name", sorted(TOOLS.keys() - UNMARKED))
def test_calls_by_another_name(name: str, written: str) -> None:
    output = write_calls(TOOLS[name], [(written, {"query": "a"})])
    assert calls_in(name, output) == [("search", {"query": "a"})]


@pytest.mark.parametrize("name", sorted(TOOLS.keys() - UNMARKED - NO_BRACKETS))
def test_name_with_brackets(name: str) -> None:
    for written in ("search()", "search(query, limit)"):
        output = write_calls(TOOLS[name], [(written, {"query": "a"})])
        assert calls_in(name, output) == [("search", {"query": "a"})]
    output = write_calls(TOOLS[name], [("search(x)", {"query": "a"})])
    assert not any("call" in item for item in found_in(name, output))


@pytest.mark.parametrize("name", sorted(UNMARKED))
def test_call_without_a_tag_has_the_exact_name(name: str) -> None:
    """A word of an answer is no call, because it looks like the name of a tool."""
    output = write_calls(TOOLS[name], [("Search", {"query": "a"})])
    assert "call" not in found_in(name, output)[0]

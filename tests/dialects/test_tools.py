"""Which tools a model sees, and under what names."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.dialects.tools import PromptTools, collect_tools, namespace_notes
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Options, ToolChoice
from antiphon.wire.items import AdditionalTools, ToolSearchOutput
from antiphon.wire.tools import Custom, Function, GrammarFormat, Namespace, Tool, WebSearch

F, G = Function(name="f", description="F."), Function(name="g")
PATCH = Custom(name="patch", format=GrammarFormat(syntax="lark", definition="start: X"))
SPACE = Namespace(name="ns", tools=(F, PATCH))


def prompt_tools(*tools: Tool, items: Any = (), **options: Any) -> PromptTools:
    return collect_tools(Options(tools=tools, **options), items)


def names(tools: Any) -> list[str]:
    return [tool.name for tool in tools]


def test_namespaced_names_are_flattened_and_restored() -> None:
    found = prompt_tools(F, SPACE, Function(name="a__b"))
    assert names(found.tools) == ["f", "ns__f", "ns__patch", "a__b"]
    wire = {name: (shape.namespace, shape.wire_name) for name, shape in found.shapes.items()}
    assert wire == {
        "f": (None, "f"),
        "ns__f": ("ns", "f"),
        "ns__patch": ("ns", "patch"),
        "a__b": (None, "a__b"),
    }
    assert found.name_of("f", "ns") == "ns__f"
    assert found.name_of("gone", "old") == "old__gone"


def test_colliding_names_stay_distinct() -> None:
    found = prompt_tools(Function(name="ns__f"), SPACE)
    assert names(found.tools) == ["ns__f", "ns__f_2", "ns__patch"]
    assert found.shapes["ns__f_2"].namespace == "ns"
    assert found.name_of("f", "ns") == "ns__f_2"


def test_custom_tool_is_a_function_with_one_string() -> None:
    (tool,) = prompt_tools(PATCH).tools
    definition = tool.definition()["function"]
    assert definition["parameters"]["properties"] == {"input": {"type": "string"}}
    assert "Lark grammar" in definition["description"] and "start: X" in definition["description"]
    assert tool.shape.custom and tool.grammar is not None


def test_function_without_parameters_takes_none() -> None:
    definition = prompt_tools(G).tools[0].definition()["function"]
    assert definition["parameters"] == {"type": "object", "properties": {}}
    assert definition["description"] == ""


def test_tools_without_a_prompt_form_are_skipped() -> None:
    assert names(prompt_tools(WebSearch(), F).tools) == ["f"]


def test_tools_of_the_conversation_are_added() -> None:
    items = (AdditionalTools(tools=(SPACE,)), ToolSearchOutput(tools=(G,)))
    assert names(prompt_tools(F, items=items).tools) == ["f", "ns__f", "ns__patch", "g"]


def test_repeated_tool_is_shown_once() -> None:
    """Clients send the tools of a search with every later request."""
    again = Function(name="f", description="Newer.")
    found = prompt_tools(F, items=(AdditionalTools(tools=(again, G)), AdditionalTools(tools=(G,))))
    assert names(found.tools) == ["f", "g"]
    assert found.tools[0].description == "Newer."


def test_tool_choice_none_allows_no_call() -> None:
    assert prompt_tools(F, tool_choice=ToolChoice("none")) == PromptTools()


@pytest.mark.parametrize(
    ("choice", "callable_", "required"),
    [
        (ToolChoice("auto"), ["f", "ns__f", "ns__patch"], False),
        (ToolChoice("required"), ["f", "ns__f", "ns__patch"], True),
        (ToolChoice("one", frozenset({("f", None), ("f", "ns")})), ["f", "ns__f"], True),
        (ToolChoice("one", frozenset({("f", "ns")})), ["ns__f"], True),
        (ToolChoice("one", frozenset({("patch", "ns")})), ["ns__patch"], True),
        (
            ToolChoice("auto", frozenset({("patch", "ns")})),
            ["ns__patch"],
            False,
        ),
    ],
)
def test_tool_choice_restricts_callable_tools(
    choice: ToolChoice, callable_: list[str], required: bool
) -> None:
    found = prompt_tools(F, SPACE, tool_choice=choice)
    assert names(found.callable) == callable_
    assert found.required is required
    assert len(found.tools) == 3, "what may not be called is shown all the same"


def test_functions_namespace_is_not_part_of_a_name() -> None:
    found = prompt_tools(Namespace(name="functions", tools=(F,)), G)
    assert names(found.tools) == ["f", "g"]
    assert found.shapes["f"].namespace == "functions"


@pytest.mark.parametrize(
    "choice", [ToolChoice("required"), ToolChoice("one", frozenset({("gone", None)}))]
)
def test_required_call_without_callable_tool_is_refused(choice: ToolChoice) -> None:
    with pytest.raises(InvalidRequest) as refused:
        prompt_tools(WebSearch(), tool_choice=choice)
    assert refused.value.param == "tool_choice"


def test_namespace_descriptions_are_collected() -> None:
    spaces = (
        Namespace(name="crm", tools=(F,), description="Customers."),
        Namespace(name="functions", tools=(G,), description="Plain."),
        Namespace(name="browser", tools=(F,), description="The web."),
        SPACE,
        F,
    )
    assert namespace_notes(spaces, apart=("browser",)) == [
        "The functions crm__… belong together: Customers."
    ]

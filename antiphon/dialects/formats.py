"""How model families write thinking and tool calls: one row each, read by one scanner.

A tool format is a machine: (state, terminal) → (state, meanings), and for each state what its text
is. ``text`` is the state outside of all markup. Terminals that are special tokens of the model are
matched by id, so that text which only looks like them stays text; the others are matched as text.
A row also says how one call is written, from which prompts and grammars are made.

Sources: the chat templates the models are published with, and the parsers of vLLM and SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = [
    "REASONING",
    "TOOLS",
    "ParameterForm",
    "ReasoningFormat",
    "Step",
    "ToolFormat",
    "Written",
    "detect",
]


class ReasoningFormat(Struct, frozen=True, kw_only=True):
    """Thinking stands between an ``open`` and a ``close`` terminal. The first of each is how it is
    written; the others are read as well. ``marks``: texts by which a template is recognised."""

    name: str
    open: tuple[str, ...]
    close: tuple[str, ...]
    marks: tuple[str, ...] = ()


class ParameterForm(Struct, frozen=True, kw_only=True):
    """How one argument is written where arguments are no JSON object: before key text VALUE
    text_end for strings, before key json VALUE json_end for the rest. ``quoted``: strings too are
    JSON values."""

    before: str
    json: str
    json_end: str
    text: str = ""
    text_end: str = ""
    separator: str = ""
    quoted: bool = False


class Written(Struct, frozen=True, kw_only=True):
    """How calls are written: first (before name between ARGUMENTS after) separator … last.

    The arguments are a JSON object, or parameters in their own form."""

    before: str
    between: str
    after: str
    first: str = ""
    separator: str = "\n"
    last: str = ""
    parameter: ParameterForm | None = None


class Step(Struct, frozen=True):
    """Where a terminal leads, and what it means: any of ``region`` (a part of the output that is
    markup begins), ``call``, ``named``, ``key``, ``value``, ``close``, ``end``."""

    to: str
    meanings: tuple[str, ...] = ()


class ToolFormat(Struct, frozen=True, kw_only=True):
    """One way of writing calls.

    ``reads``: what the text of each state is: ``skip``, ``drop`` (white space), ``name``, ``id``,
    ``key``, ``value``,
    ``json`` (one JSON value: the arguments), ``calls`` (JSON objects with name and arguments),
    ``python`` (a list of Python calls), ``braced`` (``call:name{key:value}``).
    ``after``: where a state goes by itself when what it reads is whole.
    ``bare``: the character by which a call may begin without any terminal, at the start of an
    answer. ``trims``: one line end on each side of a value is not part of it. ``untyped_json``: a
    value whose type the schema does not tell is JSON if it can be.
    """

    name: str
    steps: Mapping[tuple[str, str], Step]
    reads: Mapping[str, str]
    written: Written
    marks: tuple[str, ...]
    after: Mapping[str, Step] = {}
    bare: str = ""
    bare_state: str = ""
    trims: bool = False
    untyped_json: bool = True
    id_holds_name: bool = False


def _steps(*rows: tuple[str, str, str, str]) -> Mapping[tuple[str, str], Step]:
    """Rows of (state, terminal, next state, meanings)."""
    return {(state, terminal): Step(to, tuple(said.split())) for state, terminal, to, said in rows}


_JSON = Written(
    before='<tool_call>\n{"name": "',
    between='", "arguments": ',
    after="}\n</tool_call>",
)


def _objects(
    name: str,
    opening: str,
    closing: str,
    written: Written,
    marks: tuple[str, ...],
    after: Mapping[str, Step] | None = None,
    bare: str = "",
) -> ToolFormat:
    """Formats whose calls are JSON objects between two terminals (the second may be missing)."""
    rows = []
    if opening:
        rows += [("text", opening, "calls", "region"), ("calls", opening, "calls", "region")]
    if closing:
        rows += [("calls", closing, "text", "end"), ("text", closing, "text", "")]
    return ToolFormat(
        name=name,
        steps=_steps(*rows),
        reads={"calls": "calls"},
        written=written,
        marks=marks,
        after=after or {},
        bare=bare,
        bare_state="calls" if bare else "",
    )


def _python(
    name: str, opening: str, closing: str, marks: tuple[str, ...], listed: bool = True
) -> ToolFormat:
    rows = []
    if opening:
        rows += [
            ("text", opening, "python", "region"),
            ("python", closing, "text", "end"),
            ("text", closing, "text", ""),
        ]
    bracket = ("[", "]") if listed else ("", "")
    return ToolFormat(
        name=name,
        steps=_steps(*rows),
        reads={"python": "python"},
        written=Written(
            first=opening + bracket[0],
            before="",
            between="(",
            after=")",
            separator=", " if listed else "\n",
            last=bracket[1] + closing,
            parameter=ParameterForm(before="", json="=", json_end="", separator=", ", quoted=True),
        ),
        marks=marks,
        after={} if opening else {"python": Step("text", ("end",))},
        bare="" if opening else "[",
        bare_state="" if opening else "python",
    )


def _deepseek_json(name: str, marks: tuple[str, ...], typed: bool) -> ToolFormat:
    """V3 names the type and fences the arguments; V3.1 does neither."""
    begin, sep, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    first, last = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    rows = [
        ("text", first, "outer", "region"),
        ("text", begin, "type" if typed else "name", "region call"),
        ("outer", begin, "type" if typed else "name", "call"),
        ("args", end, "outer", "close"),
        ("args", begin, "type" if typed else "name", "close call"),
        ("args", last, "text", "close end"),
        ("outer", last, "text", "end"),
        ("text", last, "text", ""),
    ]
    rows += (
        [("type", sep, "name", ""), ("name", "```json", "args", "named")]
        if typed
        else [("name", sep, "args", "named")]
    )
    return ToolFormat(
        name=name,
        steps=_steps(*rows),
        reads={"outer": "drop", "type": "skip", "name": "name", "args": "json"},
        written=Written(
            first=first,
            before=f"{begin}function{sep}" if typed else begin,
            between="\n```json\n" if typed else sep,
            after=f"\n```{end}" if typed else end,
            separator="\n" if typed else "",
            last=last,
        ),
        marks=marks,
    )


def _parameters(
    name: str,
    *,
    region: tuple[str, str],
    call: tuple[str, str, str],
    parameter: tuple[str, tuple[tuple[str, str], ...], str],
    written: Written,
    marks: tuple[str, ...],
    trims: bool = False,
) -> ToolFormat:
    """Formats with a tag a call and a tag a parameter. ``call``: text before the name, after it,
    and the end tag; ``parameter``: before the key, (after the key, meaning) choices, end tag."""
    first, last = region
    opening, named, closing = call
    key, values, value_end = parameter
    rows = [
        ("text", first, "outer", "region"),
        ("text", opening, "name", "region call"),
        ("outer", opening, "name", "call"),
        ("outer", last, "text", "end"),
        ("text", last, "text", ""),
        ("name", named, "between", "named"),
        ("between", key, "key", "key"),
        ("between", closing, "outer", "close"),
        ("between", last, "text", "close end"),
        ("between", opening, "name", "close call"),
        ("value", value_end, "between", "value"),
        ("value", key, "key", "value key"),
        ("value", closing, "outer", "value close"),
        ("value", last, "text", "value close end"),
    ]
    rows += [("key", after_key, "value", meaning) for after_key, meaning in values]
    return ToolFormat(
        name=name,
        steps=_steps(*rows),
        reads={
            "outer": "drop",
            "name": "name",
            "between": "drop",
            "key": "key",
            "value": "value",
        },
        written=written,
        marks=marks,
        trims=trims,
        untyped_json=not trims,
    )


_THINK = ReasoningFormat(
    name="think", open=("<think>",), close=("</think>",), marks=("<think>", "</think>")
)

REASONING: Mapping[str, ReasoningFormat] = {
    row.name: row
    for row in (
        ReasoningFormat(
            name="seed", open=("<seed:think>",), close=("</seed:think>",), marks=("<seed:think>",)
        ),
        ReasoningFormat(name="kimi", open=("◁think▷",), close=("◁/think▷",), marks=("◁think▷",)),
        ReasoningFormat(name="mistral", open=("[THINK]",), close=("[/THINK]",), marks=("[THINK]",)),
        ReasoningFormat(
            name="granite",
            open=("Here is my thought process:", "Here's my thought process:"),
            close=("Here is my response:", "Here's my response:"),
            marks=("Here is my thought process",),
        ),
        _THINK,
    )
}

_DSML = "｜DSML｜"

TOOLS: Mapping[str, ToolFormat] = {
    row.name: row
    for row in (
        _parameters(
            "deepseek_v32",
            region=(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>"),
            call=(f'<{_DSML}invoke name="', '">', f"</{_DSML}invoke>"),
            parameter=(
                f'<{_DSML}parameter name="',
                (('" string="true">', "string"), ('" string="false">', "json")),
                f"</{_DSML}parameter>",
            ),
            written=Written(
                first=f"<{_DSML}function_calls>\n",
                before=f'<{_DSML}invoke name="',
                between='">\n',
                after=f"</{_DSML}invoke>",
                last=f"\n</{_DSML}function_calls>",
                parameter=ParameterForm(
                    before=f'<{_DSML}parameter name="',
                    text='" string="true">',
                    json='" string="false">',
                    text_end=f"</{_DSML}parameter>\n",
                    json_end=f"</{_DSML}parameter>\n",
                ),
            ),
            marks=(f"{_DSML}function_calls", f"{_DSML}invoke", _DSML),
        ),
        _deepseek_json("deepseek_v3", ("<｜tool▁sep｜>", "```json"), typed=True),
        _deepseek_json("deepseek_v31", ("<｜tool▁sep｜>",), typed=False),
        ToolFormat(
            name="kimi_k2",
            steps=_steps(
                ("text", "<|tool_calls_section_begin|>", "outer", "region"),
                ("text", "<|tool_call_begin|>", "name", "region call"),
                ("outer", "<|tool_call_begin|>", "name", "call"),
                ("name", "<|tool_call_argument_begin|>", "args", "named"),
                ("args", "<|tool_call_end|>", "outer", "close"),
                ("args", "<|tool_call_begin|>", "name", "close call"),
                ("args", "<|tool_calls_section_end|>", "text", "close end"),
                ("outer", "<|tool_calls_section_end|>", "text", "end"),
                ("text", "<|tool_calls_section_end|>", "text", ""),
            ),
            reads={"outer": "drop", "name": "name", "args": "json"},
            written=Written(
                first="<|tool_calls_section_begin|>",
                before="<|tool_call_begin|>functions.",
                between=":0<|tool_call_argument_begin|>",
                after="<|tool_call_end|>",
                separator="",
                last="<|tool_calls_section_end|>",
            ),
            marks=("<|tool_calls_section_begin|>",),
            id_holds_name=True,
        ),
        _parameters(
            "minimax_m2",
            region=("<minimax:tool_call>", "</minimax:tool_call>"),
            call=('<invoke name="', '">', "</invoke>"),
            parameter=('<parameter name="', (('">', ""),), "</parameter>"),
            written=Written(
                first="<minimax:tool_call>\n",
                before='<invoke name="',
                between='">\n',
                after="</invoke>",
                last="\n</minimax:tool_call>",
                parameter=ParameterForm(
                    before='<parameter name="',
                    text='">',
                    json='">',
                    text_end="</parameter>\n",
                    json_end="</parameter>\n",
                ),
            ),
            marks=("<minimax:tool_call>",),
        ),
        ToolFormat(
            name="glm45",
            steps=_steps(
                ("text", "<tool_call>", "name", "region call"),
                ("name", "<arg_key>", "key", "named key"),
                ("name", "</tool_call>", "text", "named close end"),
                ("key", "</arg_key>", "gap", ""),
                ("gap", "<arg_value>", "value", ""),
                ("value", "</arg_value>", "between", "value"),
                ("value", "</tool_call>", "text", "value close end"),
                ("between", "<arg_key>", "key", "key"),
                ("between", "</tool_call>", "text", "close end"),
                ("between", "<tool_call>", "name", "close call"),
                ("text", "</tool_call>", "text", ""),
            ),
            reads={
                "name": "name",
                "key": "key",
                "gap": "skip",
                "value": "value",
                "between": "drop",
            },
            written=Written(
                before="<tool_call>",
                between="\n",
                after="</tool_call>",
                parameter=ParameterForm(
                    before="<arg_key>",
                    text="</arg_key>\n<arg_value>",
                    json="</arg_key>\n<arg_value>",
                    text_end="</arg_value>\n",
                    json_end="</arg_value>\n",
                ),
            ),
            marks=("<arg_key>",),
        ),
        _parameters(
            "qwen3_coder",
            region=("<tool_call>", "</tool_call>"),
            call=("<function=", ">", "</function>"),
            parameter=("<parameter=", ((">", ""),), "</parameter>"),
            written=Written(
                before="<tool_call>\n<function=",
                between=">\n",
                after="</function>\n</tool_call>",
                parameter=ParameterForm(
                    before="<parameter=",
                    text=">\n",
                    json=">\n",
                    text_end="\n</parameter>\n",
                    json_end="\n</parameter>\n",
                ),
            ),
            marks=("<function=", "<parameter="),
            trims=True,
        ),
        _objects(
            "granite",
            "<|tool_call|>",
            "",
            Written(
                first="<|tool_call|>[",
                before='{"name": "',
                between='", "arguments": ',
                after="}",
                separator=", ",
                last="]",
            ),
            ("<|tool_call|>",),
            after={"calls": Step("text", ("end",))},
        ),
        _objects(
            "phi4_mini",
            "functools",
            "",
            Written(
                first="functools[",
                before='{"name": "',
                between='", "arguments": ',
                after="}",
                separator=", ",
                last="]",
            ),
            ("functools",),
            after={"calls": Step("text", ("end",))},
        ),
        ToolFormat(
            name="mistral_v11",
            steps=_steps(
                ("text", "[TOOL_CALLS]", "name", "region call"),
                ("name", "[CALL_ID]", "id", ""),
                ("id", "[ARGS]", "args", "named"),
                ("name", "[ARGS]", "args", "named"),
                ("args", "[TOOL_CALLS]", "name", "close call"),
            ),
            reads={"name": "name", "id": "id", "args": "json"},
            written=Written(before="[TOOL_CALLS]", between="[ARGS]", after="", separator=""),
            marks=("[TOOL_CALLS]", "[ARGS]"),
            after={"args": Step("text", ("close", "end"))},
        ),
        _objects(
            "mistral",
            "[TOOL_CALLS]",
            "",
            Written(
                first="[TOOL_CALLS][",
                before='{"name": "',
                between='", "arguments": ',
                after="}",
                separator=", ",
                last="]",
            ),
            ("[TOOL_CALLS]",),
            after={"calls": Step("text", ("end",))},
        ),
        ToolFormat(
            name="functiongemma",
            steps=_steps(
                ("text", "<start_function_call>", "braced", "region"),
                ("braced", "<end_function_call>", "text", "end"),
                ("text", "<end_function_call>", "text", ""),
            ),
            reads={"braced": "braced"},
            written=Written(
                before="<start_function_call>call:",
                between="{",
                after="}<end_function_call>",
                separator="",
                parameter=ParameterForm(
                    before="",
                    text=":<escape>",
                    text_end="<escape>",
                    json=":",
                    json_end="",
                    separator=",",
                ),
            ),
            marks=("<start_function_call>",),
        ),
        _python("llama4_pythonic", "<|python_start|>", "<|python_end|>", ("<|python_start|>",)),
        _python("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", ("<|tool_call_start|>",)),
        _python(
            "olmo3", "<function_calls>", "</function_calls>", ("<function_calls>",), listed=False
        ),
        _objects("hermes", "<tool_call>", "</tool_call>", _JSON, ("<tool_call>",)),
        _objects(
            "llama3_json",
            "<|python_tag|>",
            "",
            Written(before='{"name": "', between='", "parameters": ', after="}", separator="; "),
            ('"parameters":', "<|python_tag|>"),
            after={"calls": Step("text", ("end",))},
            bare="{",
        ),
        _python("pythonic", "", "", ("[func_name1(",)),
    )
}


def detect(template: str) -> tuple[str | None, str | None]:
    """The names of the reasoning format and the tool format that a chat template writes.

    The rows are ordered from the most telling marks to the least: the first whose marks all stand
    in the template is taken.
    """
    reasoning = next(
        (row.name for row in REASONING.values() if all(mark in template for mark in row.marks)),
        None,
    )
    tools = next(
        (
            row.name
            for row in TOOLS.values()
            if "tools" in template and all(mark in template for mark in row.marks)
        ),
        None,
    )
    return reasoning, tools

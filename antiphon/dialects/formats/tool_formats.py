"""How model families write tool calls: one row each, read by one scanner. The rows of thinking
stand in ``formats_reasoning``.

Terminals that are special tokens of the model are matched by id, so that text which only looks
like them stays text; the others are matched as text. Sources: the chat templates the models are
published with, and the parsers of vLLM and SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import SetupError

from .builders import (
    braced,
    channels,
    deepseek,
    function_records,
    inkling,
    mistral,
    named_records,
    plamo,
    python,
    recipients,
    record,
    records,
    solar,
)
from .builders_keys import argument_tags, section_tags
from .builders_tags import (
    addressed_tags,
    cdata_tags,
    channel_tags,
    element_tags,
    function_tags,
    invoke_tags,
    shell_tags,
    step_tags,
    typed_tags,
)
from .metadata import HARMONY, REASONING_ABOUT, TOOLS_ABOUT, About
from .reasoning_formats import REASONING
from .types import (
    START,
    TEXT,
    THINKING,
    ParameterForm,
    Reads,
    ReasoningFormat,
    State,
    ToolFormat,
    Written,
)

__all__ = [
    "REASONING",
    "SHIPPED",
    "START",
    "TEXT",
    "THINKING",
    "TOOLS",
    "Formats",
    "ParameterForm",
    "Reads",
    "ReasoningFormat",
    "State",
    "ToolFormat",
    "Written",
]

#: Llama 4 was published with a template for JSON; that for Python calls is vLLM's.
_PYTHONIC_4 = r"(?s)\[func_name1\(.*<\|header_start\|>"
_DSML, _GCML = "｜DSML｜", "｜GCML｜"
_LABEL, _LABELLED = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
_KIMI_ENDS = {_LABEL: "label", "<|tool_call_end|>": "calls", "<|tool_calls_section_end|>": START}
_LONGCAT = argument_tags(
    "longcat_2",
    ("<longcat_tool_call>", "</longcat_tool_call>"),
    ("<longcat_arg_key>", "<longcat_arg_value>"),
    mark="<longcat_arg_key>",
)
_CALL = r"<\|function_call\|>"
_GIGACHAT = records(
    "gigachat3",
    (
        "<|message_sep|>\n\nfunction call<|role_sep|>\n",
        "function call<|role_sep|>\n",
        "<|function_call|>",
    ),
    record(before="<|message_sep|>\n\nfunction call<|role_sep|>\n"),
    mark="role_sep",
)
_LLAMA = records(
    "llama3_json",
    ("<|python_tag|>",),
    record("; ", "parameters"),
    closes=("<|python_end|>",),
    bare="{",
    # Command R's lists of actions look alike, and cannot say that there is nothing to do.
    mark=r'(?s)\A(?!.*Action:).*?("parameters":|<\|python_tag\|>)',
)
#: Between these, Llama 4 writes what it says before a call, or nothing.
_PYTHON = {"<|python_start|>": START, "<|python_end|>": START}
#: Its values stand between their tags without line ends, which is all that tells it from Qwen's.
_MIMO = "<parameter=example_parameter_1>value_1|<tool_call><function="
#: From the most telling marks to the least.
TOOLS: Mapping[str, ToolFormat] = {
    row.name: row
    for row in (
        invoke_tags(
            "deepseek_v32", f"{_DSML}function_calls", _DSML, "(?s)｜DSML｜.*function_calls"
        ),
        invoke_tags("deepseek_v41", f"{_DSML} calls", f"{_DSML} ", f"{_DSML} "),
        invoke_tags("deepseek_v4", f"{_DSML}tool_calls", _DSML, _DSML),
        invoke_tags("gigachat35", f"{_GCML}tool_calls", _GCML, _GCML),
        deepseek("deepseek_v3", "(?s)<｜tool▁sep｜>.*```json", typed=True),
        deepseek("deepseek_v31", "<｜tool▁sep｜>", typed=False),
        ToolFormat(
            name="kimi_k2",
            opens={"<|tool_calls_section_begin|>": "calls", _LABEL: "label"},
            states={
                "calls": State(reads="between", on=_KIMI_ENDS),
                "label": State(
                    reads="label", on=_KIMI_ENDS | {_LABELLED: "arguments"}, peek={"{": "arguments"}
                ),
                "arguments": State(reads="json", on=_KIMI_ENDS, then="calls"),
            },
            written=Written(
                first="<|tool_calls_section_begin|>",
                before=_LABEL + "functions.",
                between=":{n}" + _LABELLED,
                after="<|tool_call_end|>",
                separator="",
                last="<|tool_calls_section_end|>",
            ),
            mark=r"<\|tool_calls_section_begin\|>",
        ),
        step_tags("step3"),
        addressed_tags("muse", "atem:"),
        channel_tags("beam", "rfl:"),
        typed_tags("kimi_k3"),
        invoke_tags("minimax_m2", "minimax:tool_call", "", "minimax:tool_call"),
        invoke_tags("dots", "dots_function_call", "", "dots_function_call"),
        argument_tags(
            "solar_open2",
            ("<|tool_call:start|>", "<|tool_call:end|>"),
            ("<|tool_arg:start|>", "<|tool_arg:value|>"),
            mark=r"<\|tool_arg:start\|>",
            key_end="",
            value_end="<|tool_arg:end|>",
        ),
        solar("solar_open"),
        plamo("plamo3"),
        section_tags("k2_horizon", ("ifm|", ""), mark=r"<ifm\|tool_call>", named="", lenient=True),
        shell_tags("cwm"),
        cdata_tags("minicpm5"),
        element_tags("minimax_m3", "]<]minimax[>["),
        _LONGCAT,
        replace(
            _LONGCAT,
            name="longcat",
            written=record("", before="<longcat_tool_call>\n", after="\n</longcat_tool_call>"),
            mark="<longcat_tool_call>",
        ),
        section_tags("hy_v3", ("", ":opensource"), mark=":opensource|<tool_sep:"),
        section_tags("hy_v4", ("", ":6124c78e"), mark=":6124c78e|<tool_calls:", named="", line=""),
        section_tags("hy_v3_plain", ("", ""), mark="<tool_sep>"),
        argument_tags(
            "iquest_q1",
            ("<iquest_tool_call>", "</iquest_tool_call>"),
            ("<arg_key>", "<arg_value>"),
            mark="<iquest_tool_call>",
        ),
        argument_tags(
            "glm45",
            ("<tool_call>", "</tool_call>"),
            ("<arg_key>", "<arg_value>"),
            mark="<arg_key>",
        ),
        argument_tags(
            "xing4",
            ("<tool_call>", "</tool_call>"),
            ("<param_key>", "<param_value>"),
            mark="<param_key>",
            line="",
        ),
        function_records("functionary", r"\{start_tag\}=\{function_name\}"),
        recipients("functionary_v3_2", ">>>all"),
        channels("llm_jp", "chat_format=llm-jp-harmony"),
        function_tags("seed_oss", "seed:tool_call", "seed:tool_call", lines=False),
        function_tags("mimo", "tool_call", _MIMO, lines=False),
        function_tags("qwen3_coder", "tool_call", "<function="),
        records(
            "phi4_mini",
            ("functools[", "<|tool_call|>"),
            record(", ", first="functools[", last="]"),
            closes=("<|/tool_call|>",),
            mark=r"functools|<\|/tool\|>",
        ),
        records(
            "granite",
            ("<|tool_call|>", "<tool_call>"),
            record(first="<|tool_call|>[", separator=", ", last="]"),
            closes=("</tool_call>",),
            mark=r"<\|tool_call\|>",
        ),
        mistral(
            "mistral_v11",
            Written(before="[TOOL_CALLS]", between="[CALL_ID]{id}[ARGS]", after="", separator=""),
            r"\[CALL_ID\]",
        ),
        mistral(
            "mistral_v13",
            Written(before="[TOOL_CALLS]", between="[ARGS]", after="", separator=""),
            r"\[ARGS\]",
        ),
        mistral(
            "mistral", record(", ", first="[TOOL_CALLS][", last="]", ids=True), r"\[TOOL_CALLS\]"
        ),
        braced("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
        braced("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>', in_order=True),
        records(
            "cohere",
            ("<|START_ACTION|>",),
            record(
                ",\n    ",
                "parameters",
                name='"tool_call_id": "{n}", "tool_name"',
                first="<|START_ACTION|>[\n    ",
                last="\n]<|END_ACTION|>",
            ),
            closes=("<|END_ACTION|>",),
            mark=r"<\|START_ACTION\|>",
        ),
        named_records("apertus", "<|tools_prefix|>", "<|tools_suffix|>", r"<\|tools_prefix\|>"),
        inkling("inkling"),
        replace(
            _GIGACHAT, name="gigachat31", written=record(before="<|function_call|>"), mark=_CALL
        ),
        _GIGACHAT,
        records(
            "internlm",
            ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
            record(before="<|action_start|><|plugin|>\n", after="<|action_end|>"),
            closes=("<|action_end|>",),
            mark=r"<\|action_start\|>",
        ),
        records(
            "minimax_m1",
            ("<tool_calls>",),
            record(first="<tool_calls>\n", last="\n</tool_calls>"),
            closes=("</tool_calls>",),
            mark="provide tool-name and json-object",
        ),
        records(
            "hunyuan_a13b",
            ("<tool_calls>",),
            record(", ", first="<tool_calls>[", last="]</tool_calls>", ids=True),
            closes=("</tool_calls>",),
            mark="<tool_calls>",
        ),
        python("llama4_pythonic", "<|python_start|>", "<|python_end|>", _PYTHONIC_4),
        python("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", r"<\|tool_call_start\|>"),
        python("olmo3", "<function_calls>", "</function_calls>", "<function_calls>", listed=False),
        records(
            "openpangu",
            ("<|tool_call_start|>", "[unused11]"),
            record(", ", first="<|tool_call_start|>\n[", last="]\n<|tool_call_end|>"),
            closes=("<|tool_call_end|>", "[unused12]"),
            mark=r"\[unused11\]",
        ),
        records(
            "hyperclovax",
            (" -> tool/function_call\n",),
            record(", ", first=" -> tool/function_call\n[", last="]<|im_end|>"),
            closes=("<|im_end|>\n<|im_start|>assistant", "<|im_end|>"),
            mark="-> tool/function_call",
        ),
        records(
            "rwkv",
            ("**Tool Call:**", "<tool_call>"),
            record(before="**Tool Call:**\n```json\n", after="\n```"),
            inside=("```json", "```"),
            mark=r"\*\*Tool Call:\*\*",
        ),
        records(
            "hermes",
            ("<tool_call>",),
            record(before="<tool_call>{line}", after="{line}</tool_call>"),
            closes=("</tool_call>",),
            mark="<tool_call>",
        ),
        records(
            "nemotron_json",
            ("<TOOLCALL>",),
            record(", ", first="<TOOLCALL>[", last="]</TOOLCALL>"),
            closes=("</TOOLCALL>",),
            mark="<TOOLCALL>",
        ),
        records(
            "nemotron_mini",
            ("<toolcall>",),
            record(" ", before="<toolcall> ", after=" </toolcall>"),
            closes=("</toolcall>",),
            mark="<toolcall>|<extra_id_1>Tool",
        ),
        records(
            "granite_20b_fc",
            ("<function_call>",),
            record(before="<function_call> "),
            mark="<function_call>",
        ),
        records(
            "xlam",
            (),
            record(", ", first="[", last="]", ids=True),
            bare="[",
            mark="calls in a single JSON array|xLAM|deep thinking subroutine",
        ),
        replace(_LLAMA, opens={**_LLAMA.opens, **_PYTHON}),
        python("pythonic", "", "", r"\[func_name1\("),
        python("granite_pythonic", "", "", "", listed=False),
    )
}


class Formats(Struct, frozen=True, kw_only=True):
    """The formats there are, the most telling marks first."""

    tools: Mapping[str, ToolFormat]
    reasoning: Mapping[str, ReasoningFormat]

    def detect(self, template: str, special: Collection[str] = ()) -> tuple[str | None, str | None]:
        """The names of the reasoning format and the tool format of a model: by its chat template,
        else by its special tokens. A template that knows neither tools nor calls has no tool
        format."""
        texts = (template, " ".join(special))
        knows = "tools" in template or "tool_calls" in template
        return (_first(self.reasoning, texts), _first(self.tools, texts) if knows else None)

    def tool_format(self, name: str) -> ToolFormat | None:
        """The row of that name, or the one that others call so, however they spell it; None for
        ``""``. Raises ``SetupError``."""
        return _named(self.tools, TOOLS_ABOUT, name, "tool_format")

    def reasoning_format(self, name: str) -> ReasoningFormat | None:
        """The same for thinking."""
        return _named(self.reasoning, REASONING_ABOUT, name, "reasoning_format")


SHIPPED = Formats(tools=TOOLS, reasoning=REASONING)

#: Names that stand for no format: all is text.
_NONE = ("", "none", "identity")
_Row = TypeVar("_Row", ToolFormat, ReasoningFormat)


def _named(
    table: Mapping[str, _Row], about: Mapping[str, About], name: str, option: str
) -> _Row | None:
    if name in _NONE:
        return None
    said = re.sub(r"[\W_]+", "_", name.lower())
    if name not in table:
        name = _row_of(about, said) or name
    if said in HARMONY:
        raise SetupError(f'{option}: {name} is no format but a dialect: dialect = "harmony"')
    if name not in table:
        raise SetupError(f"{option}: there is no {name!r} (there are: {', '.join(sorted(table))})")
    return table[name]


def _row_of(about: Mapping[str, About], name: str) -> str | None:
    """The row that has this name, or that others call so."""
    for row, told in about.items():
        if name in (row, *told.also):
            return row
    return None


def _first(table: Mapping[str, _Row], texts: tuple[str, ...]) -> str | None:
    """The first row whose mark stands in the first of the texts that has any."""
    found = (
        name
        for text in texts
        for name, row in table.items()
        if row.mark and re.search(row.mark, text)
    )
    return next(found, None)

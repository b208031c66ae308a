"""How model families write thinking and tool calls: one row each, read by one scanner.

Terminals that are special tokens of the model are matched by id, so that text which only looks
like them stays text; the others are matched as text. Sources: the chat templates the models are
published with, and the parsers of vLLM and SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from .formats_families import (
    braced,
    deepseek,
    function_tags,
    invoke_tags,
    mistral,
    python,
    record,
    records,
)
from .formats_shape import (
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
    "START",
    "TEXT",
    "THINKING",
    "TOOLS",
    "ParameterForm",
    "Reads",
    "ReasoningFormat",
    "State",
    "ToolFormat",
    "Written",
    "detect",
]

REASONING: Mapping[str, ReasoningFormat] = {
    row.name: row
    for row in (
        ReasoningFormat(
            name="seed", open=("<seed:think>",), close=("</seed:think>",), mark="<seed:think>"
        ),
        ReasoningFormat(name="kimi", open=("◁think▷",), close=("◁/think▷",), mark="◁think▷"),
        ReasoningFormat(name="mistral", open=("[THINK]",), close=("[/THINK]",), mark=r"\[THINK\]"),
        ReasoningFormat(
            name="gemma4", open=("<|channel>thought",), close=("<channel|>",), mark=r"<\|channel>"
        ),
        ReasoningFormat(
            name="granite",
            open=("Here is my thought process:", "Here's my thought process:"),
            close=("Here is my response:", "Here's my response:"),
            mark="Here is my thought process",
        ),
        ReasoningFormat(name="think", open=("<think>",), close=("</think>",), mark="</think>"),
    )
}

_DSML = "｜DSML｜"
_LABEL, _LABELLED = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
_KIMI_ENDS = {_LABEL: "label", "<|tool_call_end|>": "calls", "<|tool_calls_section_end|>": START}
_GLM_ENDS = {"<tool_call>": "name", "</tool_call>": START}

#: From the most telling marks to the least.
TOOLS: Mapping[str, ToolFormat] = {
    row.name: row
    for row in (
        invoke_tags("deepseek_v32", f"{_DSML}function_calls", _DSML, f"{_DSML}function_calls"),
        invoke_tags("deepseek_v4", f"{_DSML}tool_calls", _DSML, _DSML),
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
                between=":0" + _LABELLED,
                after="<|tool_call_end|>",
                separator="",
                last="<|tool_calls_section_end|>",
            ),
            mark=r"<\|tool_calls_section_begin\|>",
        ),
        invoke_tags("minimax_m2", "minimax:tool_call", "", "minimax:tool_call"),
        ToolFormat(
            name="glm45",
            opens={"<tool_call>": "name"},
            states={
                "name": State(reads="name", on=_GLM_ENDS | {"<arg_key>": "key"}),
                "key": State(reads="key", on=_GLM_ENDS | {"</arg_key>": "parameters"}),
                "parameters": State(
                    reads="gap", on=_GLM_ENDS | {"<arg_key>": "key", "<arg_value>": "value"}
                ),
                "value": State(reads="value", on=_GLM_ENDS | {"</arg_value>": "parameters"}),
            },
            written=Written(
                before="<tool_call>",
                between="\n",
                after="</tool_call>",
                parameter=ParameterForm(
                    before="<arg_key>",
                    text="</arg_key>\n<arg_value>",
                    text_end="</arg_value>\n",
                    json="</arg_key>\n<arg_value>",
                    json_end="</arg_value>\n",
                ),
            ),
            mark="<arg_key>",
        ),
        function_tags("seed_oss", "seed:tool_call", "seed:tool_call"),
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
            Written(before="[TOOL_CALLS]", between="[ARGS]", after="", separator=""),
            r"\[ARGS\]",
        ),
        mistral("mistral", record(", ", first="[TOOL_CALLS][", last="]"), r"\[TOOL_CALLS\]"),
        braced("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
        braced("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'),
        python("llama4_pythonic", "<|python_start|>", "<|python_end|>", r"<\|python_start\|>"),
        python("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", r"<\|tool_call_start\|>"),
        python("olmo3", "<function_calls>", "</function_calls>", "<function_calls>", listed=False),
        records(
            "hermes",
            ("<tool_call>",),
            record(before="<tool_call>\n", after="\n</tool_call>"),
            closes=("</tool_call>",),
            mark="<tool_call>",
        ),
        records(
            "llama3_json",
            ("<|python_tag|>",),
            record("; ", "parameters"),
            bare=True,
            mark=r'"parameters":|<\|python_tag\|>',
        ),
        python("pythonic", "", "", r"\[func_name1\("),
    )
}


def detect(template: str, special: Collection[str] = ()) -> tuple[str | None, str | None]:
    """The names of the reasoning format and the tool format of a model: by its chat template, else
    by its special tokens. A template that knows no tools has no tool format."""
    texts = (template, " ".join(special))
    return _first(REASONING, texts), _first(TOOLS, texts) if "tools" in template else None


def _first(table: Mapping[str, ReasoningFormat | ToolFormat], texts: tuple[str, ...]) -> str | None:
    """The first row whose mark stands in the first of the texts that has any."""
    found = (name for text in texts for name, row in table.items() if re.search(row.mark, text))
    return next(found, None)

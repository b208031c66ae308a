"""Rows whose calls are written in tags: a tag a call, a tag a parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from .types import START, THINKING, ParameterForm, Reads, State, ToolFormat, Written

__all__ = [
    "addressed_tags",
    "cdata_tags",
    "channel_tags",
    "element_tags",
    "function_tags",
    "invoke_tags",
    "shell_tags",
    "step_tags",
    "typed_tags",
]


def _tagged(
    name: str,
    section: tuple[str, str],
    call: tuple[str, str, str],
    key: str,
    values: Mapping[str, Reads],
    value_end: str,
    written: Written,
    *,
    mark: str,
    around: tuple[str, str] = ("", ""),
    loose: bool = False,
    trims: bool = False,
) -> ToolFormat:
    """A tag a call and a tag a parameter. ``call``: what stands before the name, after it, and at
    the call's end; ``values``: what ends a key, and what the value then is. ``around``: what
    begins and ends a call besides, with a word of no meaning behind its beginning. ``loose``: the
    call's tag may stand without the section's, and values may miss their end."""
    first, last = section
    opening, named, closing = call
    before, after = around
    outer = {before: "type", after: "calls"} if before else {}
    ends = {first: "calls", **outer, opening: "name", closing: "calls", last: START}
    value_ends = {value_end: "parameters", first: "calls", last: START, **outer}
    if loose:
        value_ends |= {"\n" + key: "key", f"\n{closing}\n{last}": START}
    return ToolFormat(
        name=name,
        opens={first: "calls"}
        | ({opening: "name"} if loose else {})
        | ({before: "type"} if before else {}),
        states=({"type": State(reads="gap", on=ends | {"function": "type"})} if before else {})
        | {
            "calls": State(reads="between", on=ends),
            "name": State(reads="name", on=ends | {named: "parameters"}),
            "parameters": State(reads="gap", on=ends | {key: "key"}),
            "key": State(reads="key", on={**ends, **values}),
        }
        | {kind: State(reads=kind, on=value_ends) for kind in values.values()},
        written=written,
        mark=mark,
        trims=trims,
    )


def function_tags(name: str, section: str, mark: str, *, lines: bool = True) -> ToolFormat:
    """``<function=NAME><parameter=KEY>value``; values on ``lines`` of their own."""
    first, last = f"<{section}>", f"</{section}>"
    begin, end = (">\n", "\n</parameter>{line}") if lines else (">", "</parameter>{line}")
    return _tagged(
        name,
        (first, last),
        ("<function=", ">", "</function>"),
        "<parameter=",
        {">": "value"},
        "</parameter>",
        Written(
            before=first + "{line}<function=",
            between=">{line}",
            after="</function>{line}" + last,
            separator="{line}",
            parameter=ParameterForm(
                before="<parameter=", text=begin, text_end=end, json=begin, json_end=end
            ),
        ),
        mark=mark,
        loose=True,
        trims=lines,
    )


def invoke_tags(name: str, section: str, tag: str, mark: str) -> ToolFormat:
    """``<invoke name="…"><parameter name="…">value``. ``tag`` begins every tag's name; with one,
    a parameter says whether it is a string."""
    first, last = f"<{section}>", f"</{section}>"
    key, end = f'<{tag}parameter name="', f"</{tag}parameter>"
    string, literal = '" string="true">', '" string="false">'
    return _tagged(
        name,
        (first, last),
        (f'<{tag}invoke name="', '">', f"</{tag}invoke>"),
        key,
        {string: "string", literal: "literal", '">': "value"} if tag else {'">': "value"},
        end,
        Written(
            first=first + "\n",
            before=f'<{tag}invoke name="',
            between='">\n',
            after=f"</{tag}invoke>",
            last="\n" + last,
            parameter=ParameterForm(
                before=key,
                text=string if tag else '">',
                text_end=end + "\n",
                json=literal if tag else '">',
                json_end=end + "\n",
            ),
        ),
        mark=mark,
    )


def step_tags(name: str) -> ToolFormat:
    """Step 3: DeepSeek's sections, spelled otherwise, around tags with a namespace."""
    first, last = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
    begin, sep, end = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"
    opening, closing = '<steptml:invoke name="', "</steptml:invoke>"
    key, value_end = '<steptml:parameter name="', "</steptml:parameter>"
    row = _tagged(
        name,
        (first, last),
        (opening, '">', closing),
        key,
        {'">': "value"},
        value_end,
        Written(
            first=first,
            before=f"{begin}function{sep}{opening}",
            between='">',
            after=closing + end,
            separator="",
            last=last,
            parameter=ParameterForm(
                before=key, text='">', text_end=value_end, json='">', json_end=value_end
            ),
        ),
        mark="steptml:invoke",
        around=(begin, end),
    )
    calls = row.states["calls"]  # between two calls the word's token may stand as well
    return replace(
        row, states={**row.states, "calls": replace(calls, on={**calls.on, sep: "calls"})}
    )


def cdata_tags(name: str) -> ToolFormat:
    """``<function name="…"><param name="…">value``; what would look like a tag stands in CDATA."""
    opening, closing = '<function name="', "</function>"
    key, end = '<param name="', "</param>"
    row = _tagged(
        name,
        (opening, closing),
        (opening, '">', closing),
        key,
        {'">': "value"},
        end,
        Written(
            before=opening,
            between='">',
            after=closing,
            parameter=ParameterForm(
                before=key,
                text='"><![CDATA[',
                text_end="]]>" + end,
                json='">',
                json_end=end,
                plain=r"[^<&\n]*",
            ),
        ),
        mark='<param name=|<param name=\\\\"',
    )
    ends = {opening: "name", closing: START}
    parameters = replace(row.states["parameters"], on=ends | {key: "key"})
    return replace(
        row,
        opens={opening: "name"},
        states={
            "name": State(reads="name", on=ends | {'">': "parameters"}),
            "parameters": parameters,
            "key": State(
                reads="key", on=ends | {'">': "value", '"><![CDATA[': "raw", '">\n<![CDATA[': "raw"}
            ),
            "value": State(reads="value", on={end: "parameters", closing: START}),
            "raw": State(
                reads="value", on={"]]>" + end: "parameters", f"]]>\n{end}": "parameters"}
            ),
        },
    )


def element_tags(name: str, quote: str) -> ToolFormat:
    """MiniMax M3: each tag behind a token that says it is one; keys are tags, which nest."""
    first, last = f"{quote}<tool_call>", f"{quote}</tool_call>"
    opening, closing = f'{quote}<invoke name="', f"{quote}</invoke>"
    ends = {first: "calls", opening: "name", closing: "calls", last: START}
    return ToolFormat(
        name=name,
        opens={first: "calls", opening: "name"},
        quote=quote,
        states={
            "calls": State(reads="between", on=ends),
            "name": State(reads="name", on=ends | {'">': "elements"}),
            "elements": State(reads="elements", on=ends),
        },
        written=Written(
            first=first + "\n",
            before=opening,
            between='">',
            after=closing + "\n",
            separator="",
            last=last,
            parameter=ParameterForm(
                before=quote + "<",
                text=">",
                text_end=quote + "</{key}>",
                json=">",
                json_end=quote + "</{key}>",
            ),
        ),
        mark=re.escape(quote),
    )


def typed_tags(name: str) -> ToolFormat:
    """Kimi K3: tags made of tokens, their attributes as in XML; each value tells its type."""
    opening, sep, closing = "<|open|>", "<|sep|>", "<|close|>"
    first, last = f"{opening}tools{sep}", f"{closing}tools{sep}"
    begin, end = f'{opening}call tool="', f"{closing}call{sep}"
    key, value_end = f'{opening}argument key="', f"{closing}argument{sep}"
    whole, whole_end = f'{opening}json type="object"{sep}', f"{closing}json{sep}"
    ends = {first: "calls", begin: "name", end: "calls", last: START}
    kinds = ("number", "boolean", "null", "array", "object")
    return ToolFormat(
        name=name,
        opens={first: "calls", begin: "name"},
        states={
            "calls": State(reads="between", on=ends),
            "name": State(reads="name", on=ends | {'"': "index"}),
            "index": State(reads="filler", on=ends | {sep: "parameters"}),
            "parameters": State(
                reads="gap", on=ends | {key: "key", whole: "json", whole_end: "parameters"}
            ),
            "key": State(
                reads="key",
                on=ends
                | {f'" type="string"{sep}': "string"}
                | {f'" type="{kind}"{sep}': "literal" for kind in kinds},
            ),
            "string": State(reads="string", on={value_end: "parameters", end: "calls"}),
            "literal": State(reads="literal", on={value_end: "parameters", end: "calls"}),
            "json": State(reads="json", on=ends | {whole_end: "parameters"}, then="parameters"),
        },
        written=Written(
            first=first,
            before=begin,
            between=f'" index="{{n+1}}"{sep}',
            after=end,
            separator="",
            last=last,
            parameter=ParameterForm(
                before=key,
                text=f'" type="string"{sep}',
                text_end=value_end,
                json=f'" type="{{type}}"{sep}',
                json_end=value_end,
            ),
        ),
        mark=r"<\|open\|>",
    )


def addressed_tags(name: str, tag: str) -> ToolFormat:
    """Muse: every message names its recipient, which the prompt leaves to the reply; a call is one
    to the tool, with tags for what it is asked."""
    to, message, section = " to=", "<|message|>", f"<{tag}function_calls>"
    again = "<|start|>assistant"
    row = invoke_tags(name, f"{tag}function_calls", tag, mark=f"<{tag}function_calls>")
    key, end = f'<{tag}parameter name="', f"</{tag}parameter>"
    to_whom = {f"{to}self{message}": THINKING, f"{to}user{message}": START, to: "header"}
    closing = f"</{tag}function_calls>"
    inside = {
        name: replace(state, on={**state.on, closing: "rest"}) for name, state in row.states.items()
    }
    return replace(
        row,
        opens={to: "header", section: "calls"},
        states={
            "recipient": State(reads="between", on=to_whom),
            "header": State(reads="header", on={f"{message}{section}": "calls", message: START}),
            **inside,
            "rest": State(reads="between", on={f"<|eom|>{again}": "recipient", "<|eot|>": START}),
        },
        written=Written(
            before=f'{to}{{name}}{message}{section}\n<{tag}invoke name="',
            between='">\n',
            after=f"</{tag}invoke>\n{closing}",
            separator=f"<|eom|>{again}",
            parameter=ParameterForm(
                before=key, text='">', text_end=end + "\n", json='">', json_end=end + "\n"
            ),
        ),
    )


def channel_tags(name: str, tag: str) -> ToolFormat:
    """Beam: messages as in harmony, a call's in tags on lines of their own."""
    to, message = " to=", "<|channel|>analysis <|constrain|>xml<|message|>"
    again, last = "<|end|><|start|>assistant", "<|call|>"
    key, end = f'<{tag}parameter name="', f"\n</{tag}parameter>"
    ends = {again: START, last: START, to: "name"}
    return ToolFormat(
        name=name,
        opens={to: "name"},
        states={
            "name": State(reads="name", on={message: "parameters", again: START, last: START}),
            "parameters": State(reads="gap", on=ends | {key: "key"}),
            "key": State(reads="key", on=ends | {'">\n': "value"}),
            "value": State(
                reads="value",
                on={end: "parameters", f"\n{key}": "key", again: START, last: START},
            ),
        },
        written=Written(
            before=to,
            between=message,
            after="",
            separator=again,
            last=last,
            parameter=ParameterForm(
                before=key, text='">\n', text_end=f"{end}\n", json='">\n', json_end=f"{end}\n"
            ),
        ),
        mark=f"<{tag}parameter",
    )


def shell_tags(name: str) -> ToolFormat:
    """Code World Model: ``<tool: NAME>`` and its argument as it stands; in vLLM's reading the name
    may stand before the argument instead."""
    opening, label, closing = "<tool: ", "<tool: function>", "</tool>"
    ends = {label: "command", opening: "name", closing: START}
    return ToolFormat(
        name=name,
        opens={label: "command", opening: "name"},
        states={
            "name": State(reads="name", on={">": "body", " ": "body", "\n": "body", **ends}),
            "command": State(reads="between", on=ends, then="word"),
            "word": State(reads="name", on={" ": "body", "\n": "body", **ends}),
            "body": State(reads="body", on={closing: START}),
        },
        written=Written(before=opening, between=">\n", after=f"\n{closing}"),
        mark="<tool: ",
    )

"""Builders of tool format rows: families of formats that differ in a few literals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Required, TypedDict, Unpack

from msgspec.structs import replace

from .types import START, THINKING, ParameterForm, Reads, State, ToolFormat, Written

__all__ = [
    "RowMetadata",
    "addressed_tags",
    "argument_tags",
    "braced",
    "cdata_tags",
    "channel_tags",
    "channels",
    "deepseek",
    "element_tags",
    "function_records",
    "function_tags",
    "inkling",
    "invoke_tags",
    "mistral",
    "named_records",
    "plamo",
    "python",
    "recipients",
    "record",
    "records",
    "section_tags",
    "shell_tags",
    "solar",
    "step_tags",
    "typed_tags",
]


class RowMetadata(TypedDict, total=False):
    """The fields of a row that describe it and do not change how it is read or written."""

    models: Required[str]
    aliases: tuple[str, ...]
    source: Required[str]
    from_template: bool


# --- Calls as JSON --------------------------------------------------------------------------------


def records(
    name: str,
    opens: tuple[str, ...],
    written: Written,
    *,
    closes: tuple[str, ...] = (),
    inside: tuple[str, ...] = (),
    bare: str = "",
    mark: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Calls are JSON objects with name and arguments, between terminals or in a list. ``inside``:
    what else may stand before one. ``bare``: what begins one, or the list, where no terminal
    does."""
    ends = dict.fromkeys(closes, START) | dict.fromkeys((*opens, *inside), "records")
    return ToolFormat(
        name=name,
        opens=dict.fromkeys(opens, "records"),
        bare=bare,
        bare_state={"{": "record", "[": "records"}.get(bare, ""),
        states={
            "records": State(reads="between", skips="[],;}", on=ends, peek={"{": "record"}),
            "record": State(reads="record", on=ends, then="records"),
        },
        written=written,
        mark=mark,
        **metadata,
    )


def named_records(
    name: str,
    opening: str,
    closing: str,
    mark: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Calls are a list of JSON objects with one key, the name, and the arguments as its value."""
    ends = {opening: "calls", closing: START}
    return ToolFormat(
        name=name,
        opens={opening: "calls"},
        states={
            "calls": State(reads="between", skips="[],;{}", on=ends | {'"': "name"}),
            "name": State(reads="name", on=ends | {'"': "colon"}),
            "colon": State(reads="gap", on=ends | {":": "colon"}, peek={"{": "arguments"}),
            "arguments": State(reads="json", on=ends, then="calls"),
        },
        written=Written(
            first=opening + "[",
            before='{"',
            between='": ',
            after="}",
            separator=", ",
            last="]" + closing,
        ),
        mark=mark,
        **metadata,
    )


def record(
    separator: str = "{line}",
    key: str = "arguments",
    *,
    name: str = '"name"',
    before: str = "",
    after: str = "",
    first: str = "",
    last: str = "",
    ids: bool = False,
) -> Written:
    """A call as a JSON object; what stands around each, and around all. ``name``: the name's key,
    and what stands before it. ``ids``: a call may have one."""
    return Written(
        first=first,
        before=f'{before}{{{name}: "',
        between=f'", "{key}": ',
        after="}" + after,
        separator=separator,
        last=last,
        ids=ids,
    )


def deepseek(
    name: str,
    mark: str,
    *,
    typed: bool,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """V3 names the type and fences the arguments; V3.1 does neither."""
    first, last = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    begin, sep, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    head = "type" if typed else "name"
    ends = {begin: head, end: "calls", last: START}
    named = {"```json": "arguments"} if typed else {sep: "arguments"}
    return ToolFormat(
        name=name,
        opens={first: "calls", begin: head},
        states={
            "calls": State(reads="between", skips="`", on=ends),
            "name": State(reads="name", on=ends | named, peek={"{": "arguments"}),
            "arguments": State(reads="json", on=ends, then="calls"),
        }
        | (
            {"type": State(reads="gap", on=ends | {sep: "name", "function": "type"})}
            if typed
            else {}
        ),
        written=Written(
            first=first,
            before=f"{begin}function{sep}" if typed else begin,
            between="\n```json\n" if typed else sep,
            after=f"\n```{end}" if typed else end,
            separator="\n" if typed else "",
            last=last,
        ),
        mark=mark,
        **metadata,
    )


def mistral(
    name: str,
    written: Written,
    mark: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """A list of JSON objects, or (tokenizer v11) name and arguments; both are read."""
    again = {"[TOOL_CALLS]": "call"}
    return ToolFormat(
        name=name,
        opens=again,
        states={
            "call": State(
                reads="name",
                on=again | {"[CALL_ID]": "id", "[ARGS]": "arguments"},
                peek={"[": "records", "{": "arguments"},
            ),
            "id": State(reads="id", on=again | {"[ARGS]": "arguments"}),
            "arguments": State(reads="json", on=again),
            "records": State(reads="between", skips="[],;", on=again, peek={"{": "record"}),
            "record": State(reads="record", on=again, then="records"),
        },
        written=written,
        mark=mark,
        **metadata,
    )


def inkling(
    name: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Messages of several types; a call is one with the tool's name in its header, which the
    prompt has begun."""
    header, call, end = "<|message_model|>", "<|content_invoke_tool_json|>", "<|end_message|>"
    ends = {end: START, header: "header", call: "record"}
    shown = {"<|content_text|>": START, "<|content_thinking|>": THINKING}
    return ToolFormat(
        name=name,
        opens={header: "header", call: "record"},
        begins="header",
        states={
            "header": State(reads="header", on=ends | shown),
            "record": State(reads="record", on=ends, then="rest"),
            "rest": State(reads="between", on=ends),
        },
        written=Written(
            before="",
            between=call + '{"name": "{name}", "args": ',
            after="}" + end,
            separator=header,
        ),
        mark=r"<\|content_invoke_tool_json\|>",
        **metadata,
    )


def solar(
    name: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Solar Open: each call tells its id, its name and its arguments behind tokens of their own.
    Calls are a message, whose end is the turn's."""
    first, last = "<|tool_calls|>", "<|calls|>"
    begin, named, given = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>"
    ends = {begin: "id", "<|tool_call:end|>": "calls", last: START}
    return ToolFormat(
        name=name,
        opens={first: "calls", begin: "id"},
        states={
            "calls": State(reads="between", on=ends),
            "id": State(reads="id", on=ends | {named: "name"}),
            "name": State(reads="name", on=ends | {given: "arguments"}),
            "arguments": State(reads="json", on=ends, then="calls"),
        },
        written=Written(
            first=first,
            before=f"{begin}{{id}}{named}",
            between=given,
            after="<|tool_call:end|>",
            separator="",
            last=last,
        ),
        mark=r"<\|tool_call:args\|>",
        **metadata,
    )


def function_records(
    name: str,
    mark: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """``<function=NAME>{…}</function>``, as Llama 3.1 writes functions that are its user's own."""
    opening, closing = "<function=", "</function>"
    ends = {opening: "name", closing: START}
    return ToolFormat(
        name=name,
        opens={opening: "name"},
        states={
            "name": State(reads="name", on=ends | {">": "arguments"}),
            "arguments": State(reads="json", on=ends, then="rest"),
            "rest": State(reads="between", on=ends),
        },
        written=Written(before=opening, between=">", after=closing, separator=""),
        mark=mark,
        **metadata,
    )


def recipients(
    name: str,
    mark: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """``>>>NAME`` on a line, and what it is told; an answer is told to ``all``. The prompt has
    written the first sign."""
    opens = {">>>": "name"}
    ends = opens | {">>>all\n": START}
    return ToolFormat(
        name=name,
        opens=opens,
        bare_state="name",
        doubtful=True,
        states={
            "name": State(reads="name", on={"\n": "arguments"}),
            "arguments": State(reads="json", on=ends, then="rest"),
            "rest": State(reads="between", on=ends),
        },
        written=Written(before="", between="\n", after="", separator=">>>"),
        mark=mark,
        **metadata,
    )


def channels(
    name: str,
    mark: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Messages as in harmony, written by a template: a call's names its function in its role, or
    in its channel. A vocabulary may put a blank behind its control tokens."""
    to, told = "to=functions.", "<|message|>"
    again = "<|end|><|start|>assistant"
    ends = dict.fromkeys((again, "<|end|>", "<|call|>"), START)
    opens = (f" {to}", f"<|channel|>commentary {to}", f"<|channel|> commentary {to}")
    heads = {told: "arguments", f" json{told}": "arguments"}
    heads |= dict.fromkeys(("<|channel|>", "<|constrain|>", " <|constrain|>"), "head")
    return ToolFormat(
        name=name,
        opens=dict.fromkeys(opens, "name"),
        doubtful=True,
        states={
            "name": State(reads="name", on=ends | heads),
            "head": State(reads="filler", on=ends | {told: "arguments"}),
            "arguments": State(reads="json", on=ends),
        },
        written=Written(
            before=opens[0],
            between=f"<|channel|>commentary <|constrain|> json{told}",
            after="",
            separator=again,
            last="<|call|>",
        ),
        mark=mark,
        **metadata,
    )


def plamo(
    name: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """PLaMo: everything stands between tokens of its own."""

    def pair(what: str) -> tuple[str, str]:
        return f"<|plamo:begin_{what}:plamo|>", f"<|plamo:end_{what}:plamo|>"

    first, last = pair("tool_requests")
    begin, end = pair("tool_request")
    named, name_end = pair("tool_name")
    given, given_end = pair("tool_arguments")
    given += "<|plamo:constrain|>json<|plamo:msg|>"
    ends = dict.fromkeys((first, begin, given_end, end), "calls") | {named: "name", last: START}
    return ToolFormat(
        name=name,
        opens={first: "calls", begin: "calls"},
        states={
            "calls": State(reads="between", on=ends),
            "name": State(reads="name", on=ends | {name_end: "named"}),
            "named": State(reads="filler", on=ends | {given: "arguments"}),
            "arguments": State(reads="json", on=ends, then="calls"),
        },
        written=Written(
            first=first,
            before=begin + named,
            between=name_end + given,
            after=given_end + end,
            separator="",
            last=last,
        ),
        mark="begin_tool_requests:plamo",
        **metadata,
    )


# --- Calls as in Python ---------------------------------------------------------------------------


def python(
    name: str,
    opening: str,
    closing: str,
    mark: str,
    *,
    listed: bool = True,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Python calls, in a list or one a line; without an ``opening``, at the start of an answer."""
    ends = {opening: "calls", closing: START} if opening else {}
    left, right, line = ("[", "]", "") if listed else ("", "", "\n" if opening else "")
    over = {"]": START} if listed else {}
    return ToolFormat(
        name=name,
        opens={opening: "calls"} if opening else {},
        bare="[" if listed else "",
        bare_state="calls" if listed or not opening else "",
        states={
            "calls": State(
                reads="between", skips="[,;", on=ends | over, peek={"{": "record"}, then="name"
            ),
            "name": State(reads="name", on={"(": "arguments"} | ends),
            "arguments": State(reads="pairs", on=ends, then="calls"),
            # Some write JSON all the same.
            "record": State(reads="record", on=ends, then="calls"),
        },
        written=Written(
            first=opening + left + line,
            before="",
            between="(",
            after=")",
            separator=", " if listed else "\n",
            last=line + right + closing,
            parameter=_KEYWORDS,
        ),
        mark=mark,
        **metadata,
    )


_KEYWORDS = ParameterForm(before="", json="=", json_end="", separator=", ", quoted=True)


def braced(
    name: str,
    opening: str,
    closing: str,
    quote: str,
    *,
    in_order: bool = False,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """``call:NAME{key:value}``, strings between tokens made for that."""
    ends = {opening: "call", closing: START}
    return ToolFormat(
        name=name,
        opens={opening: "call"},
        states={
            "call": State(reads="between", on=ends | {"call:": "name"}),
            "name": State(reads="name", on=ends | {"{": "arguments"}),
            "arguments": State(reads="pairs", on=ends, then="call"),
        },
        written=Written(
            before=opening + "call:",
            between="{",
            after="}" + closing,
            separator="",
            parameter=ParameterForm(
                before="",
                text=":" + quote,
                text_end=quote,
                json=":",
                json_end="",
                separator=",",
                in_order=in_order,
            ),
        ),
        quote=quote,
        mark=re.escape(opening),
        **metadata,
    )


# --- Calls in tags, a tag for each parameter ------------------------------------------------------


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
    **metadata: Unpack[RowMetadata],
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
        **metadata,
    )


def function_tags(
    name: str,
    section: str,
    mark: str,
    *,
    lines: bool = True,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
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
        **metadata,
    )


def invoke_tags(
    name: str,
    section: str,
    tag: str,
    mark: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
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
        **metadata,
    )


def step_tags(
    name: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
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
        **metadata,
    )
    calls = row.states["calls"]  # between two calls the word's token may stand as well
    return replace(
        row, states={**row.states, "calls": replace(calls, on={**calls.on, sep: "calls"})}
    )


def cdata_tags(
    name: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
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
        **metadata,
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


def element_tags(
    name: str,
    quote: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
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
        **metadata,
    )


def typed_tags(
    name: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
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
        **metadata,
    )


def addressed_tags(
    name: str,
    tag: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Muse: every message names its recipient, which the prompt leaves to the reply; a call is one
    to the tool, with tags for what it is asked."""
    to, message, section = " to=", "<|message|>", f"<{tag}function_calls>"
    again = "<|start|>assistant"
    row = invoke_tags(
        name,
        f"{tag}function_calls",
        tag,
        mark=f"<{tag}function_calls>",
        **metadata,
    )
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


def channel_tags(
    name: str,
    tag: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
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
        **metadata,
    )


def shell_tags(
    name: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
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
        **metadata,
    )


# --- Calls in tags, a tag for each key and one for each value -------------------------------------


def argument_tags(
    name: str,
    call: tuple[str, str],
    tags: tuple[str, str],
    *,
    mark: str,
    key_end: str | None = None,
    value_end: str | None = None,
    line: str = "{line}",
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """The name, then a tag for each key and one for each value. ``tags``: how both begin, as in
    ``<arg_key>`` and ``<arg_value>``; a key without an end of its own ends where its value
    begins. ``line``: what parts them."""
    opening, closing = call
    key, value = tags
    key_end = key.replace("<", "</") if key_end is None else key_end
    value_end = value.replace("<", "</") if value_end is None else value_end
    ends = {opening: "head", closing: START}
    after_key = {key_end: "parameters"} if key_end else {value: "value"}
    between = f"{key_end}{line}{value}" if key_end else value
    return ToolFormat(
        name=name,
        opens={opening: "head"},
        states={
            # Some write JSON all the same.
            "head": State(reads="between", on=ends, peek={"{": "record"}, then="name"),
            "record": State(reads="record", on=ends, then="rest"),
            "rest": State(reads="between", on=ends),
            # Ling 3 writes the line end behind its name as it stands in a source, now and then.
            "name": State(
                reads="name", on=ends | {key: "key", "\\n": "parameters"}, peek={"{": "arguments"}
            ),
            "arguments": State(reads="json", on=ends, then="parameters"),
            "key": State(reads="key", on=ends | after_key),
            "parameters": State(reads="gap", on=ends | {key: "key", value: "value"}),
            "value": State(reads="value", on=ends | {value_end: "parameters"}),
        },
        written=Written(
            before=opening,
            between=line,
            after=closing,
            separator="{line}",
            parameter=_parameter(key, between, value_end + line),
        ),
        mark=mark,
        **metadata,
    )


def section_tags(
    name: str,
    tag: tuple[str, str],
    mark: str,
    *,
    named: str = "tool_sep",
    line: str = "{line}",
    lenient: bool = False,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Keys and values in tags of their own behind the name, all calls in a section. ``tag``: what
    every tag's name begins and ends with. ``named``: the tag behind the name, if there is one.
    ``line``: what parts keys and values. ``lenient``: a call may be JSON instead, and tell what its
    values are."""

    def pair(word: str) -> tuple[str, str]:
        said = f"{tag[0]}{word}{tag[1]}"
        return f"<{said}>", f"</{said}>"

    (first, last), (opening, closing) = pair("tool_calls"), pair("tool_call")
    (key, key_end), (value, value_end) = pair("arg_key"), pair("arg_value")
    (kind, kind_end), behind = pair("arg_type"), pair(named)[0] if named else ""
    head = "head" if lenient else "name"
    ends = {first: "calls", opening: head, closing: "calls", last: START}
    after_name = {behind: "parameters"} if behind else {}
    between = f"{key_end}{line}{value}"
    return ToolFormat(
        name=name,
        opens={first: "calls", opening: head},
        states={
            "calls": State(reads="between", on=ends),
            "name": State(reads="name", on=ends | after_name | {key: "key"}),
            "key": State(reads="key", on=ends | {key_end: "parameters"}),
            "parameters": State(
                reads="gap",
                on=ends | {key: "key", value: "value"} | ({kind: "type"} if lenient else {}),
            ),
            "value": State(reads="value", on=ends | {value_end: "parameters"}),
        }
        | (
            {
                "head": State(reads="between", on=ends, peek={"{": "record"}, then="name"),
                "record": State(reads="record", on=ends, then="calls"),
                "type": State(reads="filler", on=ends | {kind_end: "parameters", value: "value"}),
            }
            if lenient
            else {}
        ),
        written=Written(
            first=first + "{line}",
            before=opening,
            between=behind + line,
            after=closing,
            separator="{line}",
            last="{line}" + last,
            parameter=_parameter(key, between, value_end + line),
        ),
        mark=mark,
        **metadata,
    )


def _parameter(key: str, between: str, end: str) -> ParameterForm:
    """Texts and JSON are written alike."""
    return ParameterForm(before=key, text=between, text_end=end, json=between, json_end=end)

"""Rows that are alike: families of tool formats that differ in a few literals."""

from __future__ import annotations

import re

from .types import START, THINKING, ParameterForm, State, ToolFormat, Written

__all__ = [
    "braced",
    "channels",
    "deepseek",
    "function_records",
    "inkling",
    "mistral",
    "named_records",
    "plamo",
    "python",
    "recipients",
    "record",
    "records",
    "solar",
]


def records(
    name: str,
    opens: tuple[str, ...],
    written: Written,
    *,
    closes: tuple[str, ...] = (),
    inside: tuple[str, ...] = (),
    bare: str = "",
    mark: str,
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
    )


def named_records(name: str, opening: str, closing: str, mark: str) -> ToolFormat:
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


def python(name: str, opening: str, closing: str, mark: str, *, listed: bool = True) -> ToolFormat:
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
    )


_KEYWORDS = ParameterForm(before="", json="=", json_end="", separator=", ", quoted=True)


def deepseek(name: str, mark: str, *, typed: bool) -> ToolFormat:
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
    )


def braced(
    name: str, opening: str, closing: str, quote: str, *, in_order: bool = False
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
    )


def mistral(name: str, written: Written, mark: str) -> ToolFormat:
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
    )


def inkling(name: str) -> ToolFormat:
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
    )


def solar(name: str) -> ToolFormat:
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
    )


def function_records(name: str, mark: str) -> ToolFormat:
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
    )


def recipients(name: str, mark: str) -> ToolFormat:
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
    )


def channels(name: str, mark: str) -> ToolFormat:
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
    )


def plamo(name: str) -> ToolFormat:
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
    )

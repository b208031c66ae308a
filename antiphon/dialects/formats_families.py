"""Rows that are alike: families of tool formats that differ in a few literals."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .formats_shape import START, ParameterForm, Reads, State, ToolFormat, Written

__all__ = [
    "braced",
    "deepseek",
    "function_tags",
    "invoke_tags",
    "mistral",
    "python",
    "record",
    "records",
]


def records(
    name: str,
    opens: tuple[str, ...],
    written: Written,
    *,
    closes: tuple[str, ...] = (),
    bare: bool = False,
    mark: str,
) -> ToolFormat:
    """Calls are JSON objects with name and arguments, between terminals or in a list."""
    ends = dict.fromkeys(closes, START) | dict.fromkeys(opens, "records")
    return ToolFormat(
        name=name,
        opens=dict.fromkeys(opens, "records"),
        bare="{" if bare else "",
        bare_state="record",
        states={
            "records": State(reads="between", skips="[],;}", on=ends, peek={"{": "record"}),
            "record": State(reads="record", on=ends, then="records"),
        },
        written=written,
        mark=mark,
    )


def record(
    separator: str = "\n",
    key: str = "arguments",
    *,
    before: str = "",
    after: str = "",
    first: str = "",
    last: str = "",
) -> Written:
    """A call as a JSON object; what stands around each, and around all."""
    return Written(
        first=first,
        before=before + '{"name": "',
        between=f'", "{key}": ',
        after="}" + after,
        separator=separator,
        last=last,
    )


def python(name: str, opening: str, closing: str, mark: str, *, listed: bool = True) -> ToolFormat:
    """Python calls, in a list or one a line."""
    ends = {opening: "calls", closing: START} if opening else {}
    left, right = ("[", "]") if listed else ("", "")
    over = {"]": START} if listed else {}
    return ToolFormat(
        name=name,
        opens={opening: "calls"} if opening else {},
        bare="[" if listed else "",
        bare_state="calls",
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
            first=opening + left,
            before="",
            between="(",
            after=")",
            separator=", " if listed else "\n",
            last=right + closing,
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
        | ({"type": State(reads="gap", on=ends | {sep: "name"})} if typed else {}),
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
    loose: bool = False,
    trims: bool = False,
) -> ToolFormat:
    """A tag a call and a tag a parameter. ``call``: what stands before the name, after it, and at
    the call's end; ``values``: what ends a key, and what the value then is. ``loose``: the call's
    tag may stand without the section's, and values may miss their end."""
    first, last = section
    opening, named, closing = call
    ends = {first: "calls", opening: "name", closing: "calls", last: START}
    value_ends = {value_end: "parameters", first: "calls", last: START}
    if loose:
        value_ends |= {"\n" + key: "key", f"\n{closing}\n{last}": START}
    return ToolFormat(
        name=name,
        opens={first: "calls"} | ({opening: "name"} if loose else {}),
        states={
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


def function_tags(name: str, section: str, mark: str) -> ToolFormat:
    """``<function=NAME><parameter=KEY>value``, each on lines of its own."""
    first, last = f"<{section}>", f"</{section}>"
    return _tagged(
        name,
        (first, last),
        ("<function=", ">", "</function>"),
        "<parameter=",
        {">": "value"},
        "</parameter>",
        Written(
            before=first + "\n<function=",
            between=">\n",
            after="</function>\n" + last,
            parameter=ParameterForm(
                before="<parameter=",
                text=">\n",
                text_end="\n</parameter>\n",
                json=">\n",
                json_end="\n</parameter>\n",
            ),
        ),
        mark=mark,
        loose=True,
        trims=True,
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


def braced(name: str, opening: str, closing: str, quote: str) -> ToolFormat:
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
            ),
        ),
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

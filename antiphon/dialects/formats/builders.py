"""Functions that build tool formats. Each function builds a family of formats that differ only in a
few literals.

``types.ToolFormat`` explains the fields of a format. These parameters occur in most functions:
``name`` is the format's name, ``mark`` is a regex that matches the chat templates of models with
this format, and ``metadata`` is the format's documentation.

These variables occur in most functions. ``opening`` and ``closing`` are the texts or special tokens
before and after one call. ``first`` and ``last`` are the texts or special tokens before the first
call and after the last call. ``ends`` is a mapping: text or special token that may occur in any
state of the format → next state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain, product
from typing import Required, TypedDict, Unpack

from msgspec.structs import replace

from .types import (
    END,
    FENCES,
    NAME,
    PARAMETER,
    START,
    STRAY,
    TEXT,
    THINKING,
    UNWRAPPED,
    CallSyntax,
    ContentKind,
    ParameterSyntax,
    Quotation,
    Sequences,
    State,
    ToolFormat,
)

_JSON_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_ANY_TYPE = "|".join(_JSON_TYPES)
#: Matches the type that a model states for a value, such as ``array[string]``.
_TYPE_WORDS = rf"\s*(?:(?:{_ANY_TYPE})(?:\[(?:{_ANY_TYPE})\])?\s*)?"


#: Tags that models write around calls in place of those of their format.
_WRAPPERS = (
    *("tools", "tool", "tool_call", "tool_calls", "function_call", "function_calls"),
    *("json", "JSON", "xml"),
)


class RowMetadata(TypedDict, total=False):
    """The fields of a format that only document it. They do not change how calls are parsed or
    written."""

    models: Required[str]
    aliases: tuple[str, ...]
    source: str


# --- Calls as JSON --------------------------------------------------------------------------------


def json_calls(
    name: str,
    opens: tuple[str, ...],
    written: CallSyntax,
    *,
    closes: tuple[str, ...] = (),
    bare: str = "",
    inner: bool = False,
    mark: str,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Build a tool format whose calls are JSON objects with the tool's name and the arguments. The
    objects may stand in a list.

    - ``opens``, ``closes``: the texts or special tokens before and after the calls.
    - ``inner``: whether ``opens`` may also be plain text.
    - ``bare``: the first character of calls that may start without any of ``opens``: ``{`` for an
      object, or ``[`` for a list. ``""`` means that there are no such calls.
    - ``written``: the syntax in which calls are written.
    """
    ends = dict.fromkeys(closes, START) | dict.fromkeys(opens, "records")
    return ToolFormat(
        name=name,
        opens=dict.fromkeys(opens, "records"),
        bare=bare,
        bare_state={"{": "record", "[": "records"}.get(bare, ""),
        inner=frozenset(opens) if inner else frozenset(),
        states={
            "records": State(reads="between", skips="[],;}", on=ends, peek={"{": "record"}),
            "record": State(reads="record", on=ends, then="records"),
        },
        written=written,
        mark=mark,
        **metadata,
    )


def with_spellings(row: ToolFormat, spellings: Mapping[str, tuple[str, ...]]) -> ToolFormat:
    """Add other spellings of tags to a format. ``spellings``: the text of a tag → other texts that
    models write in its place."""

    def variants(literal: str) -> list[str]:
        others = (
            literal.replace(text, other)
            for text, more in spellings.items()
            if text in literal
            for other in more
        )
        return [literal, *others]

    def widen(on: Mapping[str, str]) -> dict[str, str]:
        added = {other: to for literal, to in on.items() for other in variants(literal)}
        return {**added, **on}

    def sequences(each: Sequences) -> Sequences:
        return tuple(
            dict.fromkeys(choice for parts in each for choice in product(*map(variants, parts)))
        )

    states = {
        name: replace(
            state,
            on=widen(state.on),
            ends={
                other: sequences(each)
                for literal, each in state.ends.items()
                for other in variants(literal)
            },
            quotes={
                other: Quotation(
                    begins=sequences(quotation.begins),
                    closes=tuple(chain.from_iterable(map(variants, quotation.closes))),
                    follows=sequences(quotation.follows),
                )
                for literal, quotation in state.quotes.items()
                for other in variants(literal)
            },
        )
        for name, state in row.states.items()
    }
    inner = frozenset(other for literal in row.inner for other in variants(literal))
    return replace(row, states=states, opens=widen(row.opens), inner=inner)


def with_other_sections(row: ToolFormat, section: str, others: Iterable[str]) -> ToolFormat:
    """Add the tags that models write around calls in place of those of the format. ``section``,
    ``others``: the names of the tags."""
    names = sorted({*others} - {section})
    return with_spellings(
        row,
        {f"{sign}{section}>": tuple(f"{sign}{name}>" for name in names) for sign in ("<", "</")},
    )


def with_section(row: ToolFormat, first: str, last: str) -> ToolFormat:
    """Add tags around all calls to a format that has none, because some models of the family write
    them. ``first``, ``last``: the tags before and after the calls."""
    states = {
        name: replace(state, on={**state.on, first: "calls", last: START})
        for name, state in row.states.items()
    }
    return replace(row, states=states, opens={first: "calls"}, inner=frozenset({first}))


def with_json(row: ToolFormat) -> ToolFormat:
    """Add what models of any family write where a format has calls or arguments in JSON, or tags
    for them: JSON objects in a section of calls, lists of objects, and fenced code blocks around
    objects, lists and arguments."""
    states = dict(row.states)
    calls = states.get("calls")
    if calls is not None and _holds_calls(calls) and calls.then == START:
        states["calls"] = replace(calls, peek={**calls.peek, "{": "record"})
        states["record"] = State(reads="record", on=calls.on, then="calls")
    plain = dict(states)
    for name, state in plain.items():
        inside = state.peek.get("{") or (name if state.reads == "json" else "")
        if not inside:
            continue
        is_list = inside == "record" and "{" not in state.skips
        states[name] = replace(
            state,
            on={**dict.fromkeys(FENCES, f"fence {inside}"), **state.on},
            skips=f"{state.skips}[]," if is_list else state.skips,
        )
        states |= _fenced_states(inside, plain[inside], plain.get(plain[inside].then))
    return replace(row, states=states)


def _fenced_states(name: str, inner: State, rest: State | None) -> dict[str, State]:
    """Return the states for a fenced code block around what the state ``inner`` reads, whose name
    is ``name``. ``rest``: the state after it, or None if it is outside of calls."""
    fence, after = f"fence {name}", f"after fence {name}"
    rest = rest or State(reads="between")
    tags = {tag: to for tag, to in rest.on.items() if len(tag) > 1}
    end = {"```": inner.then}
    fenced = replace(inner, on={**inner.on, **end}, then=after)
    if inner.reads == "json":
        return {fence: fenced, after: replace(rest, on={**tags, **end})}
    again = {"{": f"fenced {name}"}
    return {
        fence: replace(inner, reads="between", skips="[,", peek=again),
        f"fenced {name}": fenced,
        after: replace(
            rest, skips=f"{rest.skips}[],;", on={**tags, **end}, peek={**rest.peek, **again}
        ),
    }


def with_other_calls(row: ToolFormat, other: ToolFormat) -> ToolFormat:
    """Add the calls of another format to ``row``, because models of one family write both syntaxes.
    A section may contain calls of both."""
    between = "records" if "records" in row.states else "calls"
    names = {name: f"tag {name}" for name in other.states} | {"calls": between}

    def renamed(on: Mapping[str, str]) -> dict[str, str]:
        return {text: names.get(to, to) for text, to in on.items()}

    states = {
        names[name]: replace(
            state, on=renamed(state.on), peek=renamed(state.peek), then=names.get(state.then, START)
        )
        for name, state in other.states.items()
    }
    calls = row.states[between]
    states[between] = replace(calls, on={**states[between].on, **calls.on})
    return replace(
        row,
        opens={**renamed(other.opens), **row.opens},
        inner=row.inner | other.inner,
        states={**row.states, **states},
        trims=other.trims,
    )


def with_function_tags(row: ToolFormat) -> ToolFormat:
    """Add calls such as ``<function=NAME><parameter=KEY>value`` to a format whose calls are JSON
    objects."""
    tags = function_tags(row.name, "tool_call", row.mark, models=row.models, source=row.source)
    return with_other_calls(row, tags)


def with_wrappers(row: ToolFormat) -> ToolFormat:
    """Add other tags that models write around the calls of a format. The tags may also be plain
    text."""
    state = next((each for each in ("records", "calls") if _holds_calls(row.states.get(each))), "")
    if not state or row.has_messages:
        return row
    opens = {f"<{tag}>": state for tag in _WRAPPERS}
    ends = opens | {f"</{tag}>": START for tag in _WRAPPERS}
    states = {
        name: replace(row.states[name], on={**ends, **row.states[name].on})
        for name in {state, "record"} & row.states.keys()
    }
    inner = row.inner | (opens.keys() - row.opens.keys())
    return replace(row, opens={**opens, **row.opens}, inner=inner, states={**row.states, **states})


def _holds_calls(state: State | None) -> bool:
    """Return whether ``state`` is the one between the calls of a section."""
    return state is not None and state.reads == "between"


def with_words(row: ToolFormat) -> ToolFormat:
    """Add calls such as ``find(query="x")``, ``find.call(query="x")``, ``find {"query": "x"}`` and
    ``<name>find</name><arguments>{"query": "x"}</arguments>`` in the tags of a format whose calls
    are JSON objects."""
    records = row.states["records"]
    states = {
        "records": replace(
            records, on={"<name>": "name", "</arguments>": "records", **records.on}, then="name"
        ),
        "name": State(
            reads="name",
            on={
                **dict.fromkeys(("(", ".call("), "keywords"),
                **dict.fromkeys(("</name>", "<arguments>"), "named"),
                **records.on,
            },
            peek={"{": "arguments"},
        ),
        "named": State(
            reads="filler", on={"<arguments>": "named", **records.on}, peek={"{": "arguments"}
        ),
        "keywords": State(reads="pairs", on=records.on, close=")", then="records"),
        "arguments": State(reads="json", on=records.on, then="records"),
    }
    return replace(row, states={**row.states, **states})


def json_call_syntax(
    separator: str = "{line}",
    key: str = "arguments",
    *,
    name: str = '"name"',
    before: str = "",
    after: str = "",
    first: str = "",
    last: str = "",
    ids: bool = False,
) -> CallSyntax:
    """Return the syntax of calls that are JSON objects.

    - ``separator``: the text between two calls.
    - ``key``: the key of the arguments.
    - ``name``: the key of the tool's name, in quotes. It may contain fields that precede the key,
      as in ``"tool_call_id": "{n}", "tool_name"``.
    - ``before``, ``after``: the texts before and after each call.
    - ``first``, ``last``: the texts before the first call and after the last call.
    - ``ids``: whether a call's object may end with an id.

    The texts may contain the placeholders of ``CallSyntax``, such as ``{line}`` and ``{n}``.
    """
    return CallSyntax(
        first=first,
        before=f'{before}{{{name}: "',
        between=f'", "{key}": ',
        after="}" + after,
        separator=separator,
        last=last,
        ids=ids,
    )


def deepseek_calls(
    name: str, mark: str, *, typed: bool, **metadata: Unpack[RowMetadata]
) -> ToolFormat:
    """Build the tool format of DeepSeek V3 or V3.1.

    ``typed``: True for V3, which writes the type of a call, and puts its arguments into a fenced
    Markdown code block. False for V3.1, which does neither.
    """
    first, last = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    begin, sep, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    ends = {begin: "head", end: "calls", last: START}
    head = ends | {f"function{sep}": "name", f"```{end}": "calls"}
    return ToolFormat(
        name=name,
        opens={first: "calls", begin: "head"},
        states={
            "calls": State(reads="between", on=head),
            # Models of both versions write the syntax of the other one, too.
            "head": State(reads="between", on=head, then="name"),
            "name": State(reads="name", on=ends | {sep: "arguments"}, peek={"{": "arguments"}),
            "arguments": State(reads="json", on=ends, then="calls"),
        },
        written=CallSyntax(
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


def mistral_calls(
    name: str, written: CallSyntax, mark: str, **metadata: Unpack[RowMetadata]
) -> ToolFormat:
    """Build the tool format of a Mistral model.

    Older models write calls as a list of JSON objects. From tokenizer v11 on, models write a call
    as a name and its arguments. The format parses both syntaxes. ``written``: the syntax in which
    this model writes calls.
    """
    again = {"[TOOL_CALLS]": "call"}
    ends = again | {"[/TOOL_CALLS]": START}
    return ToolFormat(
        name=name,
        opens=again,
        states={
            "call": State(
                reads="between", on=again, peek={"[": "records", "{": "record"}, then="name"
            ),
            "name": State(
                reads="name",
                on=again | {"[CALL_ID]": "id", "[ARGS]": "arguments"},
                peek={"{": "arguments"},
            ),
            "id": State(reads="id", on=again | {"[ARGS]": "arguments"}, peek={"{": "arguments"}),
            "arguments": State(reads="json", on=again, then="rest"),
            "rest": State(reads="between", on=ends),
            "records": State(reads="between", skips="[],;", on=ends, peek={"{": "record"}),
            "record": State(reads="record", on=ends, then="records"),
        },
        written=written,
        mark=mark,
        **metadata,
    )


def inkling_calls(name: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of Inkling.

    A reply is one or more messages of several types. A call is a message with the tool's name in
    its header. The prompt already opens the header of the first message, so the reply starts inside
    this header.
    """
    header, call, end = "<|message_model|>", "<|content_invoke_tool_json|>", "<|end_message|>"
    ends = {end: START, header: "header", call: "record"}
    other_types = {"<|content_text|>": START, "<|content_thinking|>": THINKING}
    return ToolFormat(
        name=name,
        opens={header: "header", call: "record"},
        begins="header",
        states={
            "header": State(reads="header", on=ends | other_types),
            "record": State(reads="record", on=ends, then="rest"),
            "rest": State(reads="between", on=ends),
        },
        written=CallSyntax(
            before="",
            between=call + '{"name": "{name}", "args": ',
            after="}" + end,
            separator=header,
        ),
        mark=r"<\|content_invoke_tool_json\|>",
        **metadata,
    )


def solar_calls(name: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of Solar Open.

    A special token precedes each part of a call: the id, the name and the arguments. All calls form
    one message, and the end of this message ends the turn.
    """
    first, last = "<|tool_calls|>", "<|calls|>"
    begin, name_tag, args_tag = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>"
    ends = {begin: "id", "<|tool_call:end|>": "calls", last: START}
    return ToolFormat(
        name=name,
        opens={first: "calls", begin: "id"},
        states={
            "calls": State(reads="between", on=ends),
            "id": State(reads="id", on=ends | {name_tag: "name"}),
            "name": State(reads="name", on=ends | {args_tag: "arguments"}, peek={"{": "arguments"}),
            "arguments": State(reads="json", on=ends, then="calls"),
        },
        written=CallSyntax(
            first=first,
            before=f"{begin}{{id}}{name_tag}",
            between=args_tag,
            after="<|tool_call:end|>",
            separator="",
            last=last,
        ),
        mark=r"<\|tool_call:args\|>",
        **metadata,
    )


def function_json_calls(name: str, mark: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build a tool format whose calls are ``<function=NAME>{…}</function>``. Llama 3.1 writes calls
    of custom functions this way."""
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
        written=CallSyntax(before=opening, between=">", after=closing, separator=""),
        mark=mark,
        **metadata,
    )


def recipient_line_calls(name: str, mark: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of Functionary 3.2. The model writes a line ``>>>RECIPIENT``, then the
    text for this recipient.

    The recipient is a tool's name, or ``all`` for an answer. The prompt already contains the first
    ``>>>``, so the reply starts with a recipient.
    """
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
        written=CallSyntax(before="", between="\n", after="", separator=">>>"),
        mark=mark,
        **metadata,
    )


def harmony_template_calls(name: str, mark: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of a model that writes harmony messages, but has a chat template of its
    own.

    The name of the called function stands after the role or the channel of the message. With some
    vocabularies, the model writes a space after a control token. So the format accepts calls with
    and without this space.
    """
    to, message = "to=functions.", "<|message|>"
    again = "<|end|><|start|>assistant"
    ends = dict.fromkeys((again, "<|end|>", "<|call|>"), START)
    opens = (f" {to}", f"<|channel|>commentary {to}", f"<|channel|> commentary {to}")
    heads = {message: "arguments", f" json{message}": "arguments"}
    heads |= dict.fromkeys(("<|channel|>", "<|constrain|>", " <|constrain|>"), "head")
    return ToolFormat(
        name=name,
        opens=dict.fromkeys(opens, "name"),
        doubtful=True,
        states={
            "name": State(reads="name", on=ends | heads),
            "head": State(
                reads="filler",
                filler=_HEADER,
                on=ends | {message: "arguments"},
                peek={"{": "arguments"},
            ),
            "arguments": State(reads="json", on=ends, then="rest"),
            "rest": State(reads="between", on=ends),
        },
        written=CallSyntax(
            before=opens[0],
            between=f"<|channel|>commentary <|constrain|> json{message}",
            after="",
            separator=again,
            last="<|call|>",
        ),
        mark=mark,
        **metadata,
    )


#: Matches the words of a harmony header after the recipient. Not every tokenizer has harmony's
#: control tokens, so they may also be text.
_HEADER = r"(?:\s|commentary|analysis|final|json|code|<\|(?:channel|constrain)\|>)*"


def plamo_calls(name: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of PLaMo. Two special tokens surround each part of a call, and each
    kind of part has special tokens of its own."""

    def pair(what: str) -> tuple[str, str]:
        return f"<|plamo:begin_{what}:plamo|>", f"<|plamo:end_{what}:plamo|>"

    first, last = pair("tool_requests")
    begin, end = pair("tool_request")
    name_begin, name_end = pair("tool_name")
    args_begin, args_end = pair("tool_arguments")
    args_begin += "<|plamo:constrain|>json<|plamo:msg|>"
    ends = dict.fromkeys((first, begin, args_end, end), "calls") | {name_begin: "name", last: START}
    return ToolFormat(
        name=name,
        opens={first: "calls", begin: "calls"},
        states={
            "calls": State(reads="between", on=ends),
            "name": State(reads="name", on=ends | {name_end: "named"}),
            "named": State(
                reads="filler", on=ends | {args_begin: "arguments"}, peek={"{": "arguments"}
            ),
            "arguments": State(reads="json", on=ends, then="calls"),
        },
        written=CallSyntax(
            first=first,
            before=begin + name_begin,
            between=name_end + args_begin,
            after=args_end + end,
            separator="",
            last=last,
        ),
        mark="begin_tool_requests:plamo",
        **metadata,
    )


# --- Calls as in Python ---------------------------------------------------------------------------


def python_calls(
    name: str,
    opening: str,
    closing: str,
    mark: str,
    *,
    in_list: bool = True,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Build a tool format whose calls are Python function calls.

    - ``opening``, ``closing``: the texts before the first call and after the last call. If
      ``opening`` is empty, the parser recognizes calls only at the start of an answer.
    - ``in_list``: whether the calls are in a Python list. Otherwise each call is on a line of its
      own.
    """
    ends = {opening: "calls", closing: START} if opening else {}
    left, right, line = ("[", "]", "") if in_list else ("", "", "\n" if opening else "")
    list_end = {"]": START} if in_list else {}
    return ToolFormat(
        name=name,
        opens={opening: "calls"} if opening else {},
        bare="[" if in_list else "",
        bare_state="calls" if in_list or not opening else "",
        states={
            "calls": State(
                reads="between", skips="[,;", on=ends | list_end, peek={"{": "record"}, then="name"
            ),
            "name": State(reads="name", on={"(": "arguments"} | ends),
            "arguments": State(reads="pairs", on=ends, then="calls"),
            # Some models write JSON here nevertheless.
            "record": State(reads="record", on=ends, then="calls"),
        },
        written=CallSyntax(
            first=opening + left + line,
            before="",
            between="(",
            after=")",
            separator=", " if in_list else "\n",
            last=line + right + closing,
            parameter=_KEYWORDS,
        ),
        mark=mark,
        **metadata,
    )


_KEYWORDS = ParameterSyntax(before="", json="=", json_end="", separator=", ", quoted=True)


def braced_calls(
    name: str,
    opening: str,
    closing: str,
    quote: str,
    *,
    in_order: bool = False,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Build a tool format whose calls are ``call:NAME{key:value}``.

    ``opening``, ``closing``: the texts before and after each call. ``quote``: the special token
    before and after each string. ``in_order``: whether the model writes arguments in alphabetical
    order.
    """
    ends = {opening: "call", closing: START}
    called = _named(["call:"], ["{", "("])
    last_quote = tuple((*inner, close, closing) for inner in ("", "]", "}") for close in ("}", ")"))
    arguments = State(
        reads="pairs",
        on=ends,
        ends={closing: ((END,), (opening,)), quote: last_quote},
        quotes={opening: Quotation(begins=called, closes=(closing,), follows=((quote,),))},
        then="call",
    )
    return ToolFormat(
        name=name,
        opens={opening: "call", "call:": "name"},
        inner=frozenset({"call:"}),
        states={
            # Some models leave out the word "call", or write JSON.
            "call": State(
                reads="between",
                on=ends | {"call:": "name", ":": "name"},
                peek={"{": "record"},
                then="name",
            ),
            "record": State(reads="record", on=ends, then="call"),
            "name": State(reads="name", on=ends | {"{": "arguments", "(": "keywords"}),
            "arguments": arguments,
            # Some models write the call as in Python.
            "keywords": replace(arguments, close=")"),
        },
        written=CallSyntax(
            before=opening + "call:",
            between="{",
            after="}" + closing,
            separator="",
            parameter=ParameterSyntax(
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


def _tagged_calls(
    name: str,
    section: tuple[str, str],
    names: Mapping[str, str],
    closing: str,
    keys: Mapping[str, str],
    values: Mapping[str, ContentKind],
    value_end: str,
    written: CallSyntax,
    *,
    mark: str,
    outer_tags: tuple[str, str] = ("", ""),
    trims: bool = False,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Build a tool format with one tag for each call and one tag for each parameter.

    - ``section``: the tags before the first call and after the last call.
    - ``names``: the texts before a call's name → the text after it. ``closing``: the tag after a
      call.
    - ``keys``: the texts before a parameter's name → the first character after it.
    - ``values``: the texts that can follow a parameter's name. Each text is mapped to the kind of
      the value after it.
    - ``value_end``: the text after a value.
    - ``written``: the syntax in which calls are written.
    - ``outer_tags``: another pair of tags around each call. A word without meaning may follow the
      first of these tags.
    - ``trims``: whether one line end on each side of a value is dropped.
    """
    first, last = section
    before, after = outer_tags
    outer = {before: "type", after: "calls"} if before else {}
    outer_ends: Sequences = ((after, last), (after,), (before, "function")) if before else ()
    openings = dict.fromkeys(names, "name")
    name_ends = dict.fromkeys(names.values(), "parameters")
    name_ends |= {end.replace(">", "/>"): "calls" for end in names.values()}
    called = chain.from_iterable(_named([opening], [end]) for opening, end in names.items())
    ends = {first: "calls", **outer, **openings, closing: "calls", last: START}
    inside = ends | dict.fromkeys(keys, "key")
    calls = _in_section(first, tuple(called))
    on_value, value_ends = _value_ends(
        value_end,
        {key: (end,) for key, end in keys.items()},
        closing,
        last,
        again=(*calls, *outer_ends),
    )
    follows = [(value_end,), *([(after, value_end), (after, last, value_end)] if before else [])]
    quotes = _quotations(calls, tuple(keys), closing, section, *follows)
    return ToolFormat(
        name=name,
        opens={first: "calls", **openings} | ({before: "type"} if before else {}),
        inner=frozenset(names),
        states=({"type": State(reads="gap", on=ends | {"function": "type"})} if before else {})
        | {
            "calls": State(reads="between", on=ends),
            "name": State(reads="name", on=inside | name_ends, peek={"{": "arguments"}),
            "parameters": _gap_state(value_end, inside, value_ends),
            # Some models write JSON here nevertheless.
            "arguments": State(reads="json", on=ends, then="parameters"),
            "key": State(reads="key", on={**ends, **values}),
        }
        | {
            kind: _value_state(kind, value_end, on_value, value_ends, quotes)
            for kind in values.values()
        },
        written=written,
        mark=mark,
        trims=trims,
        **metadata,
    )


def _value_ends(
    value_end: str,
    keys: Mapping[str, tuple[str, ...]],
    closing: str,
    last: str,
    *,
    again: Sequences,
    has_section: bool = True,
) -> tuple[dict[str, str], dict[str, Sequences]]:
    """Return the terminals that end a value between tags, with their next states, and what must
    follow each of them (``State.ends``). A value may contain the texts of all other tags.

    - ``value_end``: the tag after a value. ``closing``: the tag after a call, or ``""`` if it is
      ``last``. ``last``: the tag after the last call.
    - ``keys``: the texts before a parameter's name → the texts that may follow the name.
    - ``again``: the beginnings of another call. ``has_section``: whether a tag stands before the
      first call. Without it, any text may follow a call.
    """
    after_call: Sequences = ((last,), *again, (END,))
    after_call += tuple((closing, *texts) for texts in after_call)  # it is written twice
    if has_section:
        after_call += ((UNWRAPPED,),)
    after_value: Sequences = ((last,), (END,), *again, ("<", PARAMETER, ">"))
    over: Sequences = ((last, END), *((last, *texts) for texts in again))
    after_value += tuple((STRAY, *texts) for texts in over)
    if closing:
        after_value += tuple((closing, *texts) for texts in after_call)
        after_value += tuple((closing, STRAY, *texts) for texts in (*over, (END,)))
        after_value += ((STRAY, closing, last), (STRAY, closing, END))
    on, ends = {value_end: "parameters", last: START}, {last: ((END,), *again)}
    for key, texts in keys.items():
        after_value += _named([key], texts)
        after_value += tuple((STRAY, key, PARAMETER, text) for text in texts)
        on[key], ends[key] = "key", tuple((PARAMETER, text) for text in texts)
    ends[value_end] = after_value
    for tag in _doubles(value_end):
        on[tag], ends[tag] = on[value_end], after_value
    if closing:
        on[closing], ends[closing] = "calls", after_call
    # If the tag after the value is missing, the line end before the next tag is no part of it.
    for tag in (*keys, closing, last):
        if tag:
            on[f"\n{tag}"], ends[f"\n{tag}"] = on[tag], ends[tag]
    return on, ends


def _doubles(value_end: str) -> dict[str, str]:
    """Return how a model repeats the closing tag ``value_end`` (``State.doubles``)."""
    tag = value_end.strip()
    if not tag.startswith("</"):
        return {}
    return {value_end + f"\n{tag}" * count: f"<{tag[2:-1]}" for count in (1, 2)}


def _value_state(
    reads: ContentKind,
    value_end: str,
    on: Mapping[str, str],
    ends: Mapping[str, Sequences],
    quotes: Mapping[str, Quotation],
) -> State:
    """Return the state that reads a value before the tag ``value_end``. The other parameters are
    fields of the state."""
    return State(
        reads=reads,
        on=on,
        ends=ends,
        closing=value_end.strip(),
        quotes=quotes,
        doubles=_doubles(value_end),
    )


def _gap_state(value_end: str, on: Mapping[str, str], ends: Mapping[str, Sequences]) -> State:
    """Return the state between two parameters. ``value_end``, ``on``, ``ends``: as for a value,
    because models write elements with the names of parameters here."""
    tag = value_end.strip()
    return State(
        reads="gap",
        on={**on, tag: "parameters"},
        ends={**ends, tag: ends[value_end]},
        peek={"{": "arguments"},
    )


def _quotations(
    calls: Sequences,
    inside: tuple[str, ...],
    closing: str,
    section: tuple[str, str],
    *follows: tuple[str, ...],
) -> dict[str, Quotation]:
    """Return how a value quotes a call (``State.quotes``). ``calls``: the beginnings of calls.
    ``inside``: the texts that may follow such a beginning. ``closing``: the tag after a call.
    ``section``: the tags before the first call and after the last call, or ``""`` for both.
    ``follows``: what may follow a call at the end of a value of another one."""
    first, last = section
    inside = (*inside, *filter(None, (closing, last)))
    begins: dict[str, list[tuple[str, ...]]] = {}
    for opening, *rest in calls:
        is_whole = bool(rest) and rest[-1] in inside
        begins.setdefault(opening, []).extend(
            [tuple(rest)] if is_whole else [(*rest, each) for each in inside]
        )
    return {
        opening: Quotation(
            begins=tuple(each),
            closes=(last if opening == first else closing or last,),
            follows=follows,
        )
        for opening, each in begins.items()
    }


def _named(openings: Iterable[str], ends: Iterable[str]) -> Sequences:
    """Return the beginnings of calls or parameters: an opening text, a name, and the text that may
    follow the name."""
    return tuple((opening, NAME, end) for opening, end in product(openings, ends))


def _in_section(first: str, called: Sequences) -> Sequences:
    """Return the beginnings of calls, with and without the tag ``first`` of their section."""
    return (*called, *((first, *each) for each in called))


def function_tags(
    name: str, section: str, mark: str, *, lines: bool = True, **metadata: Unpack[RowMetadata]
) -> ToolFormat:
    """Build a tool format whose calls are written as ``<function=NAME><parameter=KEY>value``.

    ``section``: the name of the tag around each call. ``lines``: whether each value stands on lines
    of its own.
    """
    first, last = f"<{section}>", f"</{section}>"
    begin, end = (">\n", "\n</parameter>{line}") if lines else (">", "</parameter>{line}")
    row = _tagged_calls(
        name,
        (first, last),
        # Models drift to attributes.
        {"<function=": ">", '<function name="': '">', '<function="': '">'},
        "</function>",
        {"<parameter=": ">", '<parameter name="': '"'},
        {">": "value", '">': "value"},
        "</parameter>",
        CallSyntax(
            before=first + "{line}<function=",
            between=">{line}",
            after="</function>{line}" + last,
            separator="{line}",
            parameter=ParameterSyntax(
                before="<parameter=", text=begin, text_end=end, json=begin, json_end=end
            ),
        ),
        mark=mark,
        trims=lines,
        **metadata,
    )
    return replace(with_other_sections(row, section, ["tool_call"]), ends_reasoning=True)


#: The quotes that models write around a name in a tag.
_ATTRIBUTE_QUOTES = ('"', "'", "")
#: The names of sections of calls in the versions of DeepSeek's format.
_SECTIONS = ("function_calls", "tool_calls", "calls")


def invoke_tags(
    name: str, section: str, tag: str, mark: str, **metadata: Unpack[RowMetadata]
) -> ToolFormat:
    """Build a tool format whose calls are written as ``<invoke name="…"><parameter
    name="…">value``.

    ``section``: the name of the tag around all calls. ``tag``: the prefix of the tag names
    ``invoke`` and ``parameter``. If this prefix is not empty, each parameter also states whether
    its value is a string.
    """
    first, last = f"<{section}>", f"</{section}>"
    call, parameter, end = f"<{tag}invoke name=", f"<{tag}parameter name=", f"</{tag}parameter>"
    string, literal = '" string="true">', '" string="false">'
    # Models drift to other attributes, which belong to the text of the key.
    values: dict[str, ContentKind] = {'">': "value", ">": "value"}
    if tag:
        values |= {string: "string", literal: "literal"}
    row = _tagged_calls(
        name,
        (first, last),
        {f"{call}{quote}": f"{quote}>" for quote in _ATTRIBUTE_QUOTES},
        f"</{tag}invoke>",
        {f"{parameter}{quote}": quote or ">" for quote in _ATTRIBUTE_QUOTES},
        values,
        end,
        CallSyntax(
            first=first + "\n",
            before=f'{call}"',
            between='">\n',
            after=f"</{tag}invoke>",
            last="\n" + last,
            parameter=ParameterSyntax(
                before=f'{parameter}"',
                text=string if tag else '">',
                text_end=end + "\n",
                json=literal if tag else '">',
                json_end=end + "\n",
            ),
        ),
        mark=mark,
        **metadata,
    )
    # Models also write the sections of other versions, and leave out the prefix of the tag.
    return with_other_sections(row, section, _sections(tag) if tag else ())


def marked_invoke_tags(
    name: str, section: str, tag: str, mark: str, **metadata: Unpack[RowMetadata]
) -> ToolFormat:
    """Build a tool format as ``invoke_tags`` whose models also leave out the prefix ``tag`` in all
    tags of a call."""
    plain = invoke_tags(name, section, "", mark, **metadata)
    plain = with_other_sections(plain, section, _sections(tag))
    return with_other_calls(invoke_tags(name, section, tag, mark, **metadata), plain)


def _sections(tag: str) -> set[str]:
    """Return the names of the sections that models write whose tags have the prefix ``tag``."""
    return {prefix + word for prefix in (tag, "") for word in _SECTIONS}


def step_tags(name: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of Step 3.

    Calls and parameters are written in tags with the prefix ``steptml:``. Special tokens stand
    around these tags. They are the special tokens of DeepSeek's format in another spelling.
    """
    first, last = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
    begin, sep, end = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"
    opening, closing = '<steptml:invoke name="', "</steptml:invoke>"
    key, value_end = '<steptml:parameter name="', "</steptml:parameter>"
    row = _tagged_calls(
        name,
        (first, last),
        {opening: '">'},
        closing,
        {key: '"'},
        {'">': "value"},
        value_end,
        CallSyntax(
            first=first,
            before=f"{begin}function{sep}{opening}",
            between='">',
            after=closing + end,
            separator="",
            last=last,
            parameter=ParameterSyntax(
                before=key, text='">', text_end=value_end, json='">', json_end=value_end
            ),
        ),
        mark="steptml:invoke",
        outer_tags=(begin, end),
        **metadata,
    )
    # The separator token may also stand between two calls.
    separated = {
        name: replace(
            row.states[name], on={**row.states[name].on, sep: name, f"function{sep}": name}
        )
        for name in ("calls", "type")
    }
    return replace(row, states={**row.states, **separated})


def cdata_tags(name: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build a tool format whose calls are written as ``<function name="…"><param name="…">value``.

    A value that could be mistaken for a tag stands in a CDATA section.
    """
    opening, closing = '<function name="', "</function>"
    key, end = '<param name="', "</param>"
    row = _tagged_calls(
        name,
        (opening, closing),
        {opening: '">'},
        closing,
        {key: '"'},
        {'">': "value"},
        end,
        CallSyntax(
            before=opening,
            between='">',
            after=closing,
            parameter=ParameterSyntax(
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
    called = _named([opening], '"')
    on_value, value_ends = _value_ends(end, {key: ('"',)}, "", closing, again=called)
    quotes = _quotations(_named([opening], ['">']), (key,), closing, ("", ""), (end,), ("]]>",))
    value = _value_state("value", end, on_value, value_ends, quotes)
    raw = dict.fromkeys(('"><![CDATA[', '">\n<![CDATA['), "raw")
    row = replace(
        row,
        inner=frozenset(),
        states={
            **row.states,
            "parameters": _gap_state(end, ends | {key: "key"}, value_ends),
            "key": replace(row.states["key"], on={**row.states["key"].on, **raw}),
            # Models also write the end of a section of CDATA that they did not begin.
            "value": replace(
                value,
                on={**value.on, f"]]>{end}": "parameters"},
                ends={**value.ends, f"]]>{end}": value_ends[end]},
                doubles={**value.doubles, f"]]>{end}": "<![CDATA["},
            ),
            "raw": _cdata_state(key, end, closing, value_ends[end], quotes),
        },
    )
    # Some quantized models leave out the space, or write the vocabulary's sign for it.
    spaces = {f"{tag} name": (f"{tag}name", f"{tag}Ġname") for tag in ("<function", "<param")}
    return with_spellings(with_spellings(row, {'"': ("'",)}), spaces)


def _cdata_state(
    key: str, end: str, closing: str, follows: Sequences, quotes: Mapping[str, Quotation]
) -> State:
    """Return the state that reads a section of CDATA. ``follows``: what must follow its end. The
    other parameters are tags of ``cdata_tags``, and a field of the state."""
    raw_ends = ("]]>" + end, f"]]>\n{end}", "]]>")
    # Models leave out the end of a section, or parts of it.
    lost_ends = (end, f"]]{end}", f"]>{end}")
    after = product(((closing,), (key, PARAMETER, '"'), (END,)), ("<![CDATA[", END))
    lost = tuple((*parts, STRAY, stop) for parts, stop in after)
    part = "]]><![CDATA["  # a value in several sections, as XML requires for "]]>"
    return State(
        reads="value",
        on=dict.fromkeys((*raw_ends, *lost_ends), "parameters") | {part: "raw"},
        ends=dict.fromkeys(raw_ends, follows) | dict.fromkeys(lost_ends, lost) | {part: ((),)},
        closing="]]>",
        quotes=quotes,
    )


def element_tags(name: str, quote: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of MiniMax M3.

    For each parameter, the model writes a tag with the parameter's name. These tags can be nested.
    ``quote``: the special token that precedes each tag.
    """
    first, last = f"{quote}<tool_call>", f"{quote}</tool_call>"
    opening, closing = f'{quote}<invoke name="', f"{quote}</invoke>"
    ends = {first: "calls", opening: "name", closing: "calls", last: START}
    calls = _in_section(first, _named([opening], ['">']))
    last_tag = _named(["</"], [">"])[0]
    return ToolFormat(
        name=name,
        opens={first: "calls", opening: "name"},
        quote=quote,
        states={
            "calls": State(reads="between", on=ends),
            "name": State(reads="name", on=ends | {'">': "elements"}),
            "arguments": State(reads="json", on=ends, then="elements"),
            "elements": State(
                reads="elements",
                on=ends,
                peek={"{": "arguments"},
                ends={
                    closing: ((last,), (opening,), (END,), (UNWRAPPED,)),
                    last: ((END,),),
                    quote: ((*last_tag, closing, last), (*last_tag, closing)),
                },
                quotes=_quotations(
                    calls, (f"{quote}<",), closing, (first, last), (f"{quote}</", *last_tag[1:])
                ),
            ),
        },
        written=CallSyntax(
            first=first + "\n",
            before=opening,
            between='">',
            after=closing + "\n",
            separator="",
            last=last,
            parameter=ParameterSyntax(
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


def typed_tags(name: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of Kimi K3.

    Tags are made of special tokens and have attributes as in XML. Each value states its type.
    """
    opening, sep, closing = "<|open|>", "<|sep|>", "<|close|>"
    first, last = f"{opening}tools{sep}", f"{closing}tools{sep}"
    begin, end = f'{opening}call tool="', f"{closing}call{sep}"
    key, value_end = f'{opening}argument key="', f"{closing}argument{sep}"
    whole, whole_end = f'{opening}json type="object"{sep}', f"{closing}json{sep}"
    ends = {first: "calls", begin: "name", end: "calls", last: START}
    again = _in_section(first, _named([begin], '"'))
    on_value, value_ends = _value_ends(value_end, {key: ('"',)}, end, last, again=again)
    quotes = _quotations(again, ("index=", sep), end, (first, last), (value_end,))
    return ToolFormat(
        name=name,
        opens={first: "calls", begin: "name"},
        states={
            "calls": State(reads="between", on=ends),
            "name": State(reads="name", on=ends | {'"': "index"}),
            "index": State(
                reads="filler", filler=r'\s*(?:index="\d*")?\s*', on=ends | {sep: "parameters"}
            ),
            "parameters": replace(
                _gap_state(
                    value_end,
                    ends | {key: "key", whole: "json", whole_end: "parameters"},
                    value_ends,
                ),
                peek={"{": "json"},
            ),
            "key": State(
                reads="key",
                on=ends
                | {f'" type="string"{sep}': "string"}
                | {f'" type="{kind}"{sep}': "literal" for kind in _JSON_TYPES if kind != "string"},
            ),
            "string": _value_state("string", value_end, on_value, value_ends, quotes),
            "literal": _value_state("literal", value_end, on_value, value_ends, quotes),
            "json": State(reads="json", on=ends | {whole_end: "parameters"}, then="parameters"),
        },
        written=CallSyntax(
            first=first,
            before=begin,
            between=f'" index="{{n+1}}"{sep}',
            after=end,
            separator="",
            last=last,
            parameter=ParameterSyntax(
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


def recipient_tags(name: str, tag: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of the Muse models.

    Each message of a reply starts with its recipient. A tool call is a message whose recipient is
    the tool. The arguments of the call stand in tags.

    ``tag``: the prefix of the names of these tags, such as ``atem:``.
    """
    to, message, section = " to=", "<|message|>", f"<{tag}function_calls>"
    again = "<|start|>assistant"
    row = invoke_tags(name, f"{tag}function_calls", tag, mark=f"<{tag}function_calls>", **metadata)
    key, end = f'<{tag}parameter name="', f"</{tag}parameter>"
    recipients = {f"{to}self{message}": THINKING, f"{to}user{message}": TEXT, to: "header"}
    closing = f"</{tag}function_calls>"
    rest: Sequences = ((f"<|eom|>{again}",), ("<|eot|>",), (END,))
    invoke_end = f"</{tag}invoke>"
    further: Mapping[str, Sequences] = {
        end: (
            *_named([key], '"'),
            ("<", PARAMETER, ">"),
            *((END,), (closing,), (invoke_end, closing), (invoke_end, END)),
        ),
        closing: rest,
        invoke_end: ((closing,), *rest, *_named([f'<{tag}invoke name="'], '"')),
    }
    call_states = {
        name: replace(
            state,
            on={
                text: "rest" if text.strip() == closing else next_state
                for text, next_state in {**state.on, closing: "rest"}.items()
            },
            ends={text: further.get(text.strip(), each) for text, each in state.ends.items()},
        )
        for name, state in row.states.items()
    }
    return replace(
        row,
        opens={to: "header", section: "calls"},
        inner=frozenset(),
        has_messages=True,
        states={
            "recipient": State(reads="between", on=recipients),
            "header": State(reads="header", on={f"{message}{section}": "calls", message: START}),
            **call_states,
            "rest": State(reads="between", on={f"<|eom|>{again}": "recipient", "<|eot|>": START}),
        },
        written=CallSyntax(
            before=f'{to}{{name}}{message}{section}\n<{tag}invoke name="',
            between='">\n',
            after=f"</{tag}invoke>\n{closing}",
            separator=f"<|eom|>{again}",
            parameter=ParameterSyntax(
                before=key, text='">', text_end=end + "\n", json='">', json_end=end + "\n"
            ),
        ),
    )


def channel_tags(name: str, tag: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of the Beam models.

    The model writes harmony messages. A call has an opening and a closing tag for each argument.
    The value of the argument stands between the tags, on separate lines.

    ``tag``: the prefix of the names of these tags, such as ``rfl:``.
    """
    to, message = " to=", "<|channel|>analysis <|constrain|>xml<|message|>"
    again, last = "<|end|><|start|>assistant", "<|call|>"
    key, end = f'<{tag}parameter name="', f"\n</{tag}parameter>"
    ends = {again: START, last: START, to: "name"}
    called = _named([to], [message])
    on_value, value_ends = _value_ends(
        end, {key: ('"',)}, again, last, again=called, has_section=False
    )
    on_value |= {again: START, f"\n{again}": START}
    quotes = _quotations(called, (key,), "", ("", last), (end,))
    return ToolFormat(
        name=name,
        opens={to: "name"},
        states={
            "name": State(reads="name", on={message: "parameters", again: START, last: START}),
            "parameters": _gap_state(end, ends | {key: "key"}, value_ends),
            "arguments": State(reads="json", on=ends, then="parameters"),
            "key": State(reads="key", on=ends | {'">\n': "value"}),
            "value": _value_state("value", end, on_value, value_ends, quotes),
        },
        written=CallSyntax(
            before=to,
            between=message,
            after="",
            separator=again,
            last=last,
            parameter=ParameterSyntax(
                before=key, text='">\n', text_end=f"{end}\n", json='">\n', json_end=f"{end}\n"
            ),
        ),
        mark=f"<{tag}parameter",
        **metadata,
    )


def shell_tags(name: str, **metadata: Unpack[RowMetadata]) -> ToolFormat:
    """Build the tool format of the Code World Model: ``<tool: NAME>``, followed by the call's only
    argument without markup.

    vLLM's parser also accepts the tag ``<tool: function>``. After this tag come the tool's name and
    then the argument.
    """
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
        written=CallSyntax(before=opening, between=">\n", after=f"\n{closing}"),
        mark="<tool: ",
        **metadata,
    )


# --- Calls in tags, a tag for each key and one for each value -------------------------------------


#: The opening tag of a call may be missing. The name then stands on a line of its own.
_LINES = {"\n": "line", "\n\n": "line"}


def key_value_tags(
    name: str,
    call: tuple[str, str],
    tags: tuple[str, str],
    *,
    mark: str,
    section: tuple[str, str] = ("", ""),
    after_name: str = "",
    key_end: str | None = None,
    value_end: str | None = None,
    line: str = "{line}",
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Build a tool format whose calls have the tool's name first, then a tag for each key and a tag
    for each value.

    - ``call``: the tags before and after a call.
    - ``tags``: the opening tags of keys and values, such as ``<arg_key>`` and ``<arg_value>``.
    - ``section``: the tags before the first call and after the last call, if there are such tags.
    - ``after_name``: the tag after a tool's name, if there is such a tag.
    - ``key_end``, ``value_end``: the closing tags of keys and values. None means the opening tag
      with a slash, such as ``</arg_key>``. If ``key_end`` is ``""``, a key ends where its value
      begins.
    - ``line``: the text between the name, keys and values. By default, it is an optional line end.
    """
    (opening, closing), (first, last), (key, value) = call, section, tags
    key_end = key.replace("<", "</") if key_end is None else key_end
    value_end = value.replace("<", "</") if value_end is None else value_end
    ends = {opening: "head", closing: "calls" if first else START}
    ends |= {first: "calls", last: START} if first else {}
    after_key = {value: "value"} | ({key_end: "lead"} if key_end else {})
    called = ((opening, "{"), *_named([opening], filter(None, (key, closing, after_name))))
    calls = _in_section(first, called) if first else called
    on_value, value_ends = _value_ends(
        value_end, {key: tuple(after_key)}, closing if first else "", last or closing, again=calls
    )
    # The opening tag of the next key may be missing.
    value_ends[value_end] += tuple((PARAMETER, text) for text in after_key)
    quotes = _quotations(calls, (key,), closing, section, (value_end,))
    inside = ends | {key: "key", value: "value"}
    named = dict.fromkeys(filter(None, ("\\n", after_name)), "parameters")
    return ToolFormat(
        name=name,
        opens={opening: "head", **({first: "calls"} if first else {}), **_LINES},
        inner=frozenset(_LINES),
        bare_state="line",
        states={
            "line": State(reads="name", on={key: "key", f"\n{key}": "key"}),
            "calls": State(reads="between", on=ends),
            "head": State(reads="between", on=ends, peek={"{": "record"}, then="name"),
            "record": State(reads="record", on=ends, then="calls"),
            # Ling 3 sometimes writes a literal backslash and n after the name.
            "name": State(reads="name", on=inside | after_key | named, peek={"{": "arguments"}),
            "arguments": State(reads="json", on=ends, then="parameters"),
            "key": State(reads="key", on=ends | after_key),
            "parameters": _gap_state(value_end, inside | after_key, value_ends),
            "value": _value_state("value", value_end, on_value, value_ends, quotes),
        }
        | ({"lead": State(reads="lead", on=inside, then="value")} if key_end else {}),
        written=_key_value_syntax(
            call,
            section,
            after_name + line,
            _parameter(key, (key_end and key_end + line) + value, value_end + line),
        ),
        mark=mark,
        **metadata,
    )


def sectioned_key_value_tags(
    name: str,
    tag: tuple[str, str],
    mark: str,
    *,
    after_name: str = "tool_sep",
    line: str = "{line}",
    typed: bool = False,
    **metadata: Unpack[RowMetadata],
) -> ToolFormat:
    """Build a tool format as ``key_value_tags`` with tags before the first call and after the last
    call. The names of all tags have a prefix or a suffix.

    - ``tag``: the prefix and the suffix of every tag's name.
    - ``after_name``: the name of the tag after a tool's name, or ``""`` if there is no such tag.
    - ``typed``: whether a call may state the types of its values.
    """

    def pair(word: str) -> tuple[str, str]:
        tag_name = f"{tag[0]}{word}{tag[1]}"
        return f"<{tag_name}>", f"</{tag_name}>"

    value = pair("arg_value")[0]
    row = key_value_tags(
        name,
        pair("tool_call"),
        (pair("arg_key")[0], value),
        mark=mark,
        section=pair("tool_calls"),
        after_name=pair(after_name)[0] if after_name else "",
        line=line,
        **metadata,
    )
    if not typed:
        return row
    kind, kind_end = pair("arg_type")
    before = {
        name: replace(row.states[name], on={**row.states[name].on, kind: "type"})
        for name in ("lead", "parameters")
    }
    ends = {**row.states["head"].on, kind_end: "parameters", value: "value"}
    types = State(reads="filler", filler=_TYPE_WORDS, on=ends)
    return replace(row, states={**row.states, **before, "type": types})


def _key_value_syntax(
    call: tuple[str, str], section: tuple[str, str], between: str, parameter: ParameterSyntax
) -> CallSyntax:
    """Return the syntax of the calls of ``key_value_tags``, which explains ``call`` and
    ``section``. ``between``: the text after the tool's name."""
    (before, after), (first, last) = call, section
    return CallSyntax(
        first=first and first + "{line}",
        before=before,
        between=between,
        after=after,
        separator="{line}",
        last=last and "{line}" + last,
        parameter=parameter,
    )


def _parameter(key: str, between: str, end: str) -> ParameterSyntax:
    """Return the syntax of an argument that is written in the same way for strings and for other
    values. ``key``: the text before the key. ``between``: the text between key and value. ``end``:
    the text after the value."""
    return ParameterSyntax(before=key, text=between, text_end=end, json=between, json_end=end)

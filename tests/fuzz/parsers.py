"""The parsers to fuzz.

A target is a name, a parser factory, and the outputs that mutations start from: its corpus
(``corpus/NAME.txt``, if there is one) and its goldens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from antiphon.dialects.base import Parser
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.harmony.header import read_header
from antiphon.dialects.harmony.parser import CONTROL_TOKENS, HarmonyParser, TokenCodes
from antiphon.dialects.parser.lexer import terminals_of
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.parser.tool_call import ToolShape
from tests.dialects.replies import (
    INTEGER,
    SHAPES,
    STRING,
    lexer_for,
    schema,
    specials,
    stories,
    thinking_of,
)
from tests.fuzz.pieces import PieceTokenizer

CORPUS = Path(__file__).parent / "corpus"
#: The tools of the goldens. The types of a tool's parameters stand behind references.
TOOL_SHAPES = {
    **SHAPES,
    "search": ToolShape(
        wire_name="search",
        schema={
            **schema(
                query={"$ref": "#/$defs/text"},
                limit={"anyOf": [{"$ref": "#/$defs/count"}, {"type": "null"}]},
                filters={"$ref": "#/$defs/filters"},
                tags={"type": "array", "items": {"$ref": "#/$defs/text"}},
            ),
            "$defs": {
                "text": STRING,
                "count": INTEGER,
                "filters": {"type": "object", "additionalProperties": {"$ref": "#/$defs/text"}},
            },
        },
    ),
}
_BREAK = "\n====\n"


class Target(Struct, frozen=True, kw_only=True, dict=True):
    """One parser to fuzz.

    - ``tokenizer``: its pieces come from the seeds.
    - ``make``: a factory. Its argument says whether the prompt has opened the reasoning.
    - ``seeds``: the outputs to mutate.
    - ``tags``: the texts that have a meaning in the format.
    - ``headers``: returns the parts of an output that are markup whatever they contain.
    """

    name: str
    tokenizer: PieceTokenizer
    make: Callable[[bool], Parser]
    seeds: tuple[str, ...]
    tags: frozenset[str] = frozenset()
    headers: Callable[[str], str] = lambda text: ""

    @cached_property
    def words(self) -> Sequence[str]:
        """The control tokens, and the words of the seeds."""
        found = {word for seed in self.seeds for word in re.findall(r"\w+|[^\w\s]+|\s+", seed)}
        return sorted({*self.tokenizer.special, *self.tags, *found})


def corpus(name: str) -> tuple[str, ...]:
    """Return the outputs in a target's file. A target without a file starts from its goldens."""
    path = CORPUS / f"{name}.txt"
    if not path.exists():
        return ()
    text = path.read_bytes().decode()  # line ends as they are
    return tuple(text.removesuffix("\n").split(_BREAK))


def _format(name: str, *, special: bool) -> Target:
    """Return the target of a tool format with its reasoning format."""
    form = TOOLS[name]
    thinks = thinking_of(name)
    tokens = tuple(sorted({*specials(form), *thinks.open, *thinks.close})) if special else ()
    seeds = (*corpus(name), *(story.output for story in stories() if story.calls == name))
    tokenizer = PieceTokenizer(tokens, seeds)

    def make(thinking: bool) -> Parser:
        return FormatParser(
            tokenizer,
            reasoning=thinks,
            tools=form,
            shapes=TOOL_SHAPES,
            thinking=thinking,
            lexer=lexer_for(tokens, thinks.name, name),
        )

    kind = "special" if special else "spelled"
    tags = terminals_of(thinks, form)
    return Target(name=f"{name}-{kind}", tokenizer=tokenizer, make=make, seeds=seeds, tags=tags)


_CONTROLS = re.compile(f"({'|'.join(map(re.escape, CONTROL_TOKENS.values()))})")
_HEADER_ENDS = tuple(CONTROL_TOKENS[name] for name in ("message", "channel", "constrain"))
_HEADER_STARTS = tuple(CONTROL_TOKENS[name] for name in ("start", "channel", "constrain"))
_RECIPIENT = re.compile(r"to=\s*[\w.\-]*")


def _harmony_headers(text: str) -> str:
    """Return the headers, the recipients of messages that were never begun, and all text from the
    first message of another author.
    """
    parts = [*_CONTROLS.split(text.replace("<|endoftext|>", "")), "", ""]  # the token is no text
    headers: list[str] = []
    for n, (part, end) in enumerate(pairwise(parts)):
        if part == CONTROL_TOKENS["start"] and not read_header(end).is_own:
            return "".join([*headers, *parts[n:]])
        if end in _HEADER_ENDS:
            headers.append(part)
        elif part in _HEADER_STARTS and parts[n + 2] not in _HEADER_ENDS:
            headers += _RECIPIENT.findall(end)
    return "".join(headers)


def _harmony() -> Target:
    seeds = corpus("harmony")
    tokenizer = PieceTokenizer([*CONTROL_TOKENS.values(), "<|endoftext|>"], seeds)
    make = partial(
        HarmonyParser, tokenizer, TokenCodes.from_tokenizer(tokenizer), shapes=TOOL_SHAPES
    )
    return Target(
        name="harmony",
        tokenizer=tokenizer,
        make=lambda thinking: make(open_kind="analysis" if thinking else None),
        seeds=seeds,
        headers=_harmony_headers,
    )


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        *(_format(name, special=special) for name in TOOLS for special in (True, False)),
        _harmony(),
    )
}

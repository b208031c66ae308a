"""Mutations of the corpus: parts removed, doubled, moved and inserted, quotes replaced, whole calls
quoted, then tracers inserted.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from msgspec import Struct

from antiphon.dialects.formats.tool_formats import TOOLS
from tests.dialects.replies import write_calls
from tests.fuzz.laws import TRACERS
from tests.fuzz.parsers import TARGETS, Target

#: Texts that programs tend to mishandle.
EDGES = (
    "",
    "\x00",
    "\ufeff",
    "\u2028",
    "\ud7ff",
    "😀",
    "\r\n",
    "\\ud83d",
    "9" * 40,
    "1e999",
    '"1e999"',
    '"' * 3,
    "\\",
    *('"params": ', '"kwargs": ', '"argument": ', '"input": ', '"arguments": ', '"name": '),
    '"city": "Paris", ',
    '{"name": "search", ',
    "null",
    "```json\n",
    '{"tool_calls": [',
)
_NAMES = sorted(TARGETS)
_KINDS = (
    *("remove", "double", "insert", "splice", "swap", "quote tag", "quote call"),
    *("single quotes", "no quotes"),
)
_MAX_SPAN, _MAX_LENGTH, _MAX_TRACERS = 80, 2_000, 8
#: The share of outputs in tokens of several bytes, which are read in a fraction of the time.
_PIECES_SHARE = 0.97


class Mutation(Struct, frozen=True, kw_only=True):
    """One output. ``cuts``, ``thinking`` and ``pieces`` as in ``laws.check_laws``."""

    target: Target
    text: str
    cuts: tuple[int, ...]
    thinking: bool
    pieces: bool


def mutate(seed: int) -> Mutation:
    """Return the output of this seed, always the same one."""
    rng = random.Random(seed)
    target = TARGETS[rng.choice(_NAMES)]
    words = (*target.words, *EDGES)
    text = rng.choice(target.seeds)
    for _ in range(rng.randrange(6)):
        text = _mutate_once(rng, text, target, words)[:_MAX_LENGTH]
    for tracer in rng.sample(TRACERS, rng.randint(1, _MAX_TRACERS)):
        at = rng.randint(0, len(text))
        text = text[:at] + tracer + text[at:]
    cuts = tuple(rng.randrange(4_000) for _ in range(rng.randrange(5)))
    return Mutation(
        target=target,
        text=text,
        cuts=cuts,
        thinking=rng.random() < 0.5,
        pieces=rng.random() < _PIECES_SHARE,
    )


_VALUE_STARTS = re.compile(r"""["'>:=] ?\w|[\w.] """)


def _insert_into_value(rng: random.Random, text: str, words: Sequence[str]) -> str:
    """Insert one or two of the format's tags where a value may be."""
    starts = [found.end() - 1 for found in _VALUE_STARTS.finditer(text)]
    tags = [word for word in words if word.startswith(("<", "[", "]")) and len(word) > 2]
    if not starts or not tags:
        return text
    at = rng.choice(starts)
    return text[:at] + "".join(rng.choices(tags, k=rng.randint(1, 2))) + text[at:]


_ARGUMENTS = (
    {},
    {"query": "q"},
    {"query": "it's\n", "limit": 3},
    {"query": "a 'b c' d", "limit": "3"},
    {"filters": {"a": ["b"]}, "tags": ["t"]},
    {"ghost": "g"},
)
#: The share of quoted calls in the output's own format, of those without their beginning or end,
#: and of those in a value.
_OWN_SHARE, _PART_SHARE, _VALUE_SHARE = 0.6, 0.5, 0.7


def _quote_call(rng: random.Random, text: str, name: str) -> str:
    """Insert a call of the format ``name``, or of another format, in a value or anywhere else. Its
    beginning or its end may be missing.
    """
    own = TOOLS.get(name)
    form = own if own and rng.random() < _OWN_SHARE else TOOLS[rng.choice(sorted(TOOLS))]
    call = write_calls(form, [(rng.choice(("search", "now", "ghost")), rng.choice(_ARGUMENTS))])
    if rng.random() < _PART_SHARE:
        at = rng.randint(0, len(call))
        call = call[at:] if rng.random() < 0.5 else call[:at]
    starts = [found.end() - 1 for found in _VALUE_STARTS.finditer(text)]
    in_value = starts and rng.random() < _VALUE_SHARE
    at = rng.choice(starts) if in_value else rng.randint(0, len(text))
    return text[:at] + call + text[at:]


def _mutate_once(rng: random.Random, text: str, target: Target, words: Sequence[str]) -> str:
    a, b = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    b = min(b, a + _MAX_SPAN)
    match rng.choice(_KINDS):
        case "remove":
            return text[:a] + text[b:]
        case "double":
            return text[:b] + text[a:]
        case "insert":
            return text[:a] + rng.choice(words) + text[a:]
        case "quote tag":
            return _insert_into_value(rng, text, words)
        case "quote call":
            return _quote_call(rng, text, target.name.rpartition("-")[0])
        case "single quotes":
            return text[:a] + text[a:b].replace('"', "'") + text[b:]
        case "no quotes":
            return text[:a] + text[a:b].replace('"', "") + text[b:]
        case "splice":
            other = rng.choice(target.seeds)
            return text[:a] + other[rng.randint(0, len(other)) :]
    return text[:a] + text[b:] + text[a:b]

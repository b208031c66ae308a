"""Headers of harmony messages, read leniently: who speaks, on which channel, to whom.

Known words only, in any order and on either side of the channel; what is none of them is ``rest``,
which is text where no ``<|message|>`` came. It knows no tokens and no tools.
Source: the harmony response format, and the slips that gpt-oss makes in it.
"""

from __future__ import annotations

import re

from msgspec import Struct

__all__ = ["CHANNEL", "CONSTRAIN", "LIMIT", "Header", "bare_text", "read_header"]

#: What stands for the control tokens in the text of a header: no text can hold these.
CHANNEL, CONSTRAIN = "\ud801", "\ud802"
#: Characters of a header, at most: what is longer is text.
LIMIT = 256

_NAMES = ("analysis", "commentary", "final")
_NAMED = "|".join(_NAMES)
_TO = r"to=\s*([\w.\-]*)"
#: How a stretch of a header begins: what no ``<|start|>`` announced, any other, one of a type.
_BARE = re.compile(rf"\s*(?:assistant\s*)*(?:({_NAMED})\s*)?(?:{_TO}\s*)?(?:\b(?:json|code)\b\s*)?")
_REGION = re.compile(
    rf"\s*(?:assistant\s*)*(?:\W*({_NAMED})\W*)?(?:{_TO}\s*)?(?:\b(?:json|code)\b\s*)?"
)
_TYPE = re.compile(rf"\s*(?:(?!to=)\w+)?\s*(?:{_TO}\s*)?")
_RECIPIENT = re.compile(_TO)
#: Authors that are not the model.
_OTHERS = re.compile(r"\s*(?:user|system|developer|tool|python|browser|functions)\b")
#: Recipients that call nothing.
_NOBODY = frozenset(
    {"", "all", "assistant", "developer", "functions", "system", "tool", "user", *_NAMES}
)
_WORDS = ("assistant", *_NAMES, "to=", "json", "code")


class Header(Struct, frozen=True, kw_only=True):
    """``channel`` and ``recipient``: None where there is none that means anything. ``is_own``: the
    model speaks for itself. ``rest``: what no header says."""

    channel: str | None = None
    recipient: str | None = None
    is_own: bool = True
    rest: str = ""


def read_header(text: str, *, ended: bool = True) -> Header:
    """What a header says, with ``CHANNEL`` and ``CONSTRAIN`` in the place of these tokens.
    ``ended``: by ``<|message|>``; otherwise what stands behind its known words is text."""
    is_own = _OTHERS.match(text) is None
    channel: str | None = None
    recipients: list[str] = []
    left: list[str] = []
    for number, region in enumerate(text.split(CHANNEL)):
        named, called, rest = _read(region)
        channel = named or channel
        recipients += _RECIPIENT.findall(region) if ended else called
        if number or is_own:
            left.append(rest)
    names = (name.strip(".-") for name in recipients)
    return Header(
        channel=channel,
        recipient=next((name for name in names if name not in _NOBODY), None),
        is_own=is_own,
        rest="".join(left),
    )


def _read(region: str) -> tuple[str | None, list[str], str]:
    """The channel that a stretch of a header names, whom it addresses, and what behind that is no
    header. A name that was cut is no text."""
    region, *types = region.split(CONSTRAIN)
    found = _REGION.match(region)
    assert found is not None  # every part of it may be missing
    named, *called = found.groups()
    rest = region[found.end() :]
    if any(word.startswith(rest.strip()) for word in _WORDS):
        rest = ""
    for said in types:
        behind = _TYPE.match(said)
        assert behind is not None
        called.append(behind[1])
        rest += said[behind.end() :]
    return named, [name for name in called if name], rest


def bare_text(text: str) -> int | None:
    """Where text begins in what stands where a header should, without any control token. None: it
    may be a header yet."""
    found = _BARE.match(text)
    assert found is not None
    left = text[found.end() :]
    if len(text) <= LIMIT and (not left or any(word.startswith(left) for word in _WORDS)):
        return None
    return 0 if found[2] is None else found.end()

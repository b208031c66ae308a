"""Lenient parser of the headers of harmony messages. A header states a message's author, channel
and recipient.

The parser finds known words in any order, before and after the channel. All other words go into
``Header.rest``. If no ``<|message|>`` follows the header, these words are text of the reply.
Source: the harmony response format, and the mistakes that gpt-oss makes in it.
"""

from __future__ import annotations

import re

from msgspec import Struct

#: Characters that stand for the control tokens in the text of a header. They are lone surrogates,
#: which no other text can contain.
CHANNEL, CONSTRAIN = "\ud801", "\ud802"
#: Maximum number of characters of a header. A longer text is not a header.
LIMIT = 256

_NAMES = ("analysis", "commentary", "final")
_NAMED = "|".join(_NAMES)
_SIGNS = r"[\s!-/:-@\[-`{-~]*"
_TO = r"to=\s*([\w.\-]*)"
#: Three regexes for the known words at the start of a part of a header: in a header without control
#: tokens, in any other header, and after ``<|constrain|>``.
_BARE = re.compile(rf"\s*(?:assistant\s*)*(?:({_NAMED})\s*)?(?:{_TO}\s*)?(?:\b(?:json|code)\b\s*)?")
_REGION = re.compile(
    rf"\s*(?:assistant\s*)*(?:{_SIGNS}({_NAMED}){_SIGNS})?(?:{_TO}\s*)?(?:\b(?:json|code)\b\s*)?"
)
_TYPE = re.compile(rf"\s*(?:(?!to=)[A-Za-z0-9_]+)?\s*(?:{_TO}\s*)?")
_RECIPIENT = re.compile(_TO)
#: Authors that are not the model.
_OTHERS = re.compile(r"\s*(?:user|system|developer|tool|python|browser|container|functions)\b")
#: Recipients that are not tools.
_NOBODY = frozenset(
    {"", "all", "assistant", "developer", "functions", "system", "tool", "user", *_NAMES}
)
_WORDS = ("assistant", *_NAMES, "to=", "json", "code")


class Header(Struct, frozen=True, kw_only=True):
    """The parsed header of a message.

    ``channel``, ``recipient``: None if the header contains no valid one. ``is_own``: whether the
    model is the message's author. ``rest``: the words that cannot belong to a header.
    """

    channel: str | None = None
    recipient: str | None = None
    is_own: bool = True
    rest: str = ""


def read_header(text: str, *, ended: bool = True) -> Header:
    """Parse the text of a header. In ``text``, the characters ``CHANNEL`` and ``CONSTRAIN`` stand
    for the control tokens of these names.

    ``ended``: whether ``<|message|>`` follows the header. If it does not, only known header words,
    such as ``assistant`` and ``final``, belong to the header. The words after them are text of the
    reply.
    """
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
    """Parse one part of a header: the text between two ``CHANNEL`` characters. Returns the part's
    channel, its recipients, and the text after the known header words, such as ``assistant`` and
    ``final``.

    If the output was cut off inside a known word, such as ``comm``, this word is not part of the
    returned text.
    """
    region, *types = region.split(CONSTRAIN)
    found = _REGION.match(region)
    assert found is not None  # each part of the pattern is optional, so it always matches
    named, *called = found.groups()
    rest = region[found.end() :]
    if any(word.startswith(rest.strip()) for word in _WORDS):
        rest = ""
    for word in types:
        behind = _TYPE.match(word)
        assert behind is not None
        called.append(behind[1])
        rest += word[behind.end() :]
    return named, [name for name in called if name], rest


def bare_text(text: str) -> int | None:
    """Find the end of a header at the start of ``text``, which contains no control token. Text
    without control tokens is a header only if it names a recipient.

    Returns the position after the header, or 0 if ``text`` does not start with a header. Returns
    None as long as the whole text may be a header.
    """
    found = _BARE.match(text)
    assert found is not None
    left = text[found.end() :]
    if len(text) <= LIMIT and (not left or any(word.startswith(left) for word in _WORDS)):
        return None
    return 0 if found[2] is None else found.end()

"""Parse the front matter of a Markdown file: the string fields of its YAML header.

Nested values are skipped, so no YAML library is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

_KEY = re.compile(r"([A-Za-z0-9_.-]+)[ \t]*:(?:[ \t]+(.*))?\Z")
_BLOCK = re.compile(r"([|>])([+-]?[1-9]?|[1-9][+-])[ \t]*(?:#.*)?\Z")
_COMMENT_START = re.compile(r"[ \t]#")
#: Start of the lines below a key whose value is a list or a mapping.
_NESTED = re.compile(r"- |-\Z|[A-Za-z0-9_.-]+[ \t]*:(?:\s|\Z)")
_NO_TEXT = ("[", "{", "&", "*", "!", "@", "`", "%")


def front_matter(text: str) -> Mapping[str, str]:
    """Return the string fields of the front matter of ``text``. A colon inside an unquoted string
    is accepted, because many authors write such strings.

    Raises ``ValueError`` if the front matter is invalid. The message says what is wrong.
    """
    lines = text.removeprefix("\ufeff").split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    if lines[0].rstrip() != "---":
        raise ValueError("it does not begin with front matter ('---')")
    end = next((index for index, line in enumerate(lines[1:], 1) if line.rstrip() in _ENDS), None)
    if end is None:
        raise ValueError("its front matter does not end ('---')")
    fields: dict[str, str] = {}
    index = 1
    while index < end:
        line = lines[index]
        index += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _KEY.match(line)
        if match is None:
            raise ValueError(f"its front matter cannot be read at line {index}")
        first_line = index
        while index < end and (not lines[index].strip() or lines[index][0] in " \t"):
            index += 1
        value = _value((match[2] or "").strip(), lines[first_line:index])
        if value is not None:
            fields[match[1]] = value
    return fields


_ENDS = ("---", "...")


def _value(first: str, below: Sequence[str]) -> str | None:
    """Parse the value of a YAML field. ``first``: the text after the colon, on the same line as the
    key. ``below``: the indented lines below this line.

    Returns None if the value is not a string.
    """
    if block := _BLOCK.match(first):
        return _block_scalar(below, folded=block[1] == ">")
    if first.startswith(('"', "'")):
        return _unquote(_fold_lines([first, *below]))
    if first.startswith(_NO_TEXT):
        return None
    lines = [line for line in below if not line.lstrip().startswith("#")]
    if not first:
        first_line = next((line.strip() for line in lines if line.strip()), "")
        if _NESTED.match(first_line) or first_line.startswith(_NO_TEXT):
            return None
        if first_line.startswith(('"', "'")):
            return _unquote(_fold_lines(lines))
    return _fold_lines([_without_comment(line) for line in (first, *lines)])


def _without_comment(line: str) -> str:
    comment = _COMMENT_START.search(line)
    return line if comment is None else line[: comment.start()].rstrip(" \t")


def _unquote(text: str) -> str:
    mark = text[0]
    if mark == "'":
        match = re.match(r"'((?:[^']|'')*)'", text)
        if match is not None:
            return match[1].replace("''", "'")
    elif (match := re.match(r'"(?:[^"\\]|\\.)*"', text)) is not None:
        try:
            return str(json.loads(match[0], strict=False))
        except ValueError:
            raise ValueError("its front matter has an escape that cannot be read") from None
    raise ValueError("its front matter has a quote that does not end")


def _block_scalar(lines: Sequence[str], *, folded: bool) -> str:
    """Return the text of a YAML block scalar, without its indentation. ``folded``: true for the
    style ``>``, which joins the lines; false for the style ``|``."""
    depths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    depth = min(depths, default=0)
    plain = [line[depth:].rstrip() for line in lines]
    return _fold_lines(plain) if folded else "\n".join(plain).strip("\n")


def _fold_lines(lines: Sequence[str]) -> str:
    """Join lines with spaces. One or more empty lines in a row become one line break."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line.strip())
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n".join(" ".join(each) for each in paragraphs if each)

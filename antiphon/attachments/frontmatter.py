"""The front matter of a Markdown file: the texts at the top of its YAML. What is nested is left
out, so that no YAML library is needed. It knows no names of fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

__all__ = ["front_matter"]

_KEY = re.compile(r"([A-Za-z0-9_.-]+)[ \t]*:(?:[ \t]+(.*))?\Z")
_BLOCK = re.compile(r"([|>])([+-]?[1-9]?|[1-9][+-])[ \t]*(?:#.*)?\Z")
_COMMENT = re.compile(r"[ \t]+#.*\Z")
#: How a nested value begins, on its own line or behind the key.
_NESTED = re.compile(r"- |-\Z|[A-Za-z0-9_.-]+[ \t]*:(?:\s|\Z)")
_NO_TEXT = ("[", "{", "&", "*", "!", "@", "`", "%")


def front_matter(text: str) -> Mapping[str, str]:
    """Field → its text. A colon within a text is taken as such, as many writers expect. Raises
    ``ValueError`` with what is wrong."""
    lines = text.removeprefix("\ufeff").split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    if lines[0].rstrip() != "---":
        raise ValueError("it does not begin with front matter ('---')")
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() in _ENDS), None)
    if end is None:
        raise ValueError("its front matter does not end ('---')")
    found: dict[str, str] = {}
    at = 1
    while at < end:
        line = lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _KEY.match(line)
        if match is None:
            raise ValueError(f"its front matter cannot be read at line {at}")
        begin = at
        while at < end and (not lines[at].strip() or lines[at][0] in " \t"):
            at += 1
        value = _value((match[2] or "").strip(), lines[begin:at])
        if value is not None:
            found[match[1]] = value
    return found


_ENDS = ("---", "...")


def _value(first: str, below: Sequence[str]) -> str | None:
    """The text of a field: what stands behind its key, and the indented lines below it; None if it
    is no text."""
    if block := _BLOCK.match(first):
        return _scalar(below, folded=block[1] == ">")
    if first.startswith(('"', "'")):
        return _quoted(_folded([first, *below]))
    if first.startswith(_NO_TEXT):
        return None
    lines = [line for line in below if not line.lstrip().startswith("#")]
    if not first:
        begin = next((line.strip() for line in lines if line.strip()), "")
        if _NESTED.match(begin) or begin.startswith(_NO_TEXT):
            return None
        if begin.startswith(('"', "'")):
            return _quoted(_folded(lines))
    return _folded([_COMMENT.sub("", line) for line in (first, *lines)])


def _quoted(text: str) -> str:
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


def _scalar(lines: Sequence[str], *, folded: bool) -> str:
    """A block: without its indentation."""
    depths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    depth = min(depths, default=0)
    plain = [line[depth:].rstrip() for line in lines]
    return _folded(plain) if folded else "\n".join(plain).strip("\n")


def _folded(lines: Sequence[str]) -> str:
    """Lines as one; an empty one stands for a break."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line.strip())
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n".join(" ".join(each) for each in paragraphs if each)

"""The words of texts, as searches by words see them.

Chinese, Japanese and Korean are written without blanks, or with endings that stick to their words:
there, every two signs that stand side by side are a word, and in what is searched every sign too.
It knows no index.
"""

from __future__ import annotations

import re
from itertools import pairwise

__all__ = ["index_terms", "query_terms"]

_WORD = re.compile(r"\w+")
#: Ideographs, kana, bopomofo and Hangul, wide or narrow.
_RUN = re.compile(r"[⺀-⿟々-〇぀-ㇿ㐀-䶿一-鿿ꥠ-꥿가-ퟻ豈-﫿ｦ-ﾟ\U00020000-\U0003ffff]+")


def index_terms(text: str) -> str:
    """The text as it is to be indexed; most often just the text."""
    return _RUN.sub(lambda run: f" {' '.join((*_pairs(run.group()), *run.group()))} ", text)


def query_terms(text: str) -> list[str]:
    """The words of a question, each once, as they stand in indexed texts."""
    apart = _RUN.sub(lambda run: f" {' '.join(_pairs(run.group()) or run.group())} ", text)
    return list(dict.fromkeys(_WORD.findall(apart)))


def _pairs(run: str) -> list[str]:
    return ["".join(two) for two in pairwise(run)]

"""Split texts into words for full-text search.

Chinese and Japanese have no spaces between words, and Korean attaches endings to words. In these
scripts, each pair of adjacent characters is a word. In indexed texts, each single character is a
word too.
"""

from __future__ import annotations

import re
from itertools import pairwise

_WORD = re.compile(r"\w+")
#: Ideographs, kana, bopomofo and Hangul, wide or narrow.
_RUN = re.compile(r"[⺀-⿟々-〇぀-ㇿ㐀-䶿一-鿿ꥠ-꥿가-ퟻ豈-﫿ｦ-ﾟ\U00020000-\U0003ffff]+")


def index_terms(text: str) -> str:
    """Prepare a text for a full-text index: put spaces between all words. In Chinese, Japanese and
    Korean, each single character and each pair of adjacent characters is a word. In other scripts,
    the text stays unchanged."""
    return _RUN.sub(lambda run: f" {' '.join((*_pairs(run.group()), *run.group()))} ", text)


def query_terms(text: str) -> list[str]:
    """Return the distinct words of a query. In Chinese, Japanese and Korean, each pair of adjacent
    characters is a word, and a single character is a word only if it has no neighbors in these
    scripts."""
    separated = _RUN.sub(lambda run: f" {' '.join(_pairs(run.group()) or run.group())} ", text)
    return list(dict.fromkeys(_WORD.findall(separated)))


def _pairs(run: str) -> list[str]:
    return ["".join(pair) for pair in pairwise(run)]

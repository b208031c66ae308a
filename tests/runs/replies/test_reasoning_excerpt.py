"""Excerpts of reasoning: what is taken, whatever the pieces, and after an interruption."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.runs.replies.reasoning_excerpt import Excerpt
from tests.hypothesis_settings import examples

REASONING = """\
Okay, two and two, e.g. as a sum (see 3.5). Let me think.
A second line. And on.

1.  **Analyze the Request:**
    * The sum is wanted.

```python
x = 1. # no

y. z
```
| a. | b |

> - A bullet, then. Next.

## Decide

你好。世界！
"""


def parts_of(pieces: list[str], level: str = "detailed") -> list[str]:
    excerpt = Excerpt(level)
    return [part for piece in pieces for part in excerpt.feed(piece)] + excerpt.finish()


def test_headings_and_first_sentences_are_taken() -> None:
    assert parts_of([REASONING]) == [
        "Okay, two and two, e.g. as a sum (see 3.5).",
        "**Analyze the Request**",
        "The sum is wanted.",
        "A bullet, then.",
        "**Decide**",
        "你好。",
    ]


def test_first_sentences_keep_their_distance() -> None:
    text = "A sentence. Another one.\n\n" * 100
    counts = [len(parts_of([text], level)) for level in ("concise", "auto", "detailed")]
    assert counts == [2, 5, 100]


def test_long_sentences_are_cut_between_words() -> None:
    (part,) = parts_of(["word " * 1000])
    assert len(part) < 240 and part.endswith("word…")
    (part,) = parts_of(["x" * 1000])
    assert part == "x" * 239 + "…"


_LINES = st.sampled_from(
    ["**Bold**", "# H #", "A b. C", "a. ", "```", "| a |", "", " ", "1. x", "x" * 250, "…?) "]
)


@examples(200)
@given(lines=st.lists(_LINES, max_size=8), size=st.integers(1, 9))
@example(lines=[REASONING], size=1)
def test_pieces_do_not_change_the_result(lines: list[str], size: int) -> None:
    text = "\n".join(lines)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert parts_of(pieces) == parts_of([text])

"""Front matter in the forms that people write, and invalid front matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.attachments.frontmatter import front_matter

EXAMPLES = [
    ("name: a", {"name": "a"}),
    ("# by hand\nname:   a-b  # short\n\nb: 1", {"name": "a-b", "b": "1"}),
    ("about: Use when: there is a colon.", {"about": "Use when: there is a colon."}),
    ('a: "quoted: \\"x\\" \\u00e9"', {"a": 'quoted: "x" é'}),
    ("a: 'it''s'  # so", {"a": "it's"}),
    ("a: >\n  one\n  line\n\n  two\nb: x", {"a": "one line\ntwo", "b": "x"}),
    ("a: >-\n  one", {"a": "one"}),
    ("a: |\n  one\n    two\n\nb: x", {"a": "one\n  two", "b": "x"}),
    ("a: first\n  and on\n  # no\n  on", {"a": "first and on on"}),
    ("a:\n  below", {"a": "below"}),
    ('a:\n  "below\n  it"', {"a": "below it"}),
    ("meta:\n  author: me\n  - x\nname: a", {"name": "a"}),
    ("tools:\n  - x\nmore: [1, 2]\nobj: {a: b}\nref: *x\nname: a", {"name": "a"}),
    ("a:", {"a": ""}),
    ("a: ~", {"a": "~"}),
    ("name: a\r\nb: c\r", {"name": "a", "b": "c"}),
]


@pytest.mark.parametrize(("yaml", "fields"), EXAMPLES)
def test_string_fields_are_read(yaml: str, fields: dict[str, str]) -> None:
    assert front_matter(f"---\n{yaml}\n---\n# Title\n") == fields
    assert front_matter(f"\ufeff---\n{yaml}\n...\n") == fields


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not begin"),
        ("# Title", "does not begin"),
        ("---\nname: a\n", "does not end"),
        ("---\nname\n---", "at line 2"),
        ("---\na: b\n?x: y\n---", "at line 3"),
        ("---\na: 'open\n---", "quote"),
        ('---\na: "\\q"\n---', "escape"),
    ],
)
def test_invalid_front_matter_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        front_matter(text)


@given(st.text(st.sampled_from("ab:-'\"|> #\n\t[{&*\\")))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        front_matter(f"---\n{text}\n---\n")
    except ValueError:
        pass

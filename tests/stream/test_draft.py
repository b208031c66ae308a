"""Texts under construction."""

from __future__ import annotations

from antiphon.stream.draft import MAX_PIECES
from antiphon.stream.kinds import KINDS
from antiphon.stream.writer import ResponseWriter
from antiphon.testing.store_checks.runs import queued_response
from antiphon.wire.items import Message, OutputText
from tests.retained import retained_bytes


def test_long_text_is_not_kept_in_pieces() -> None:
    writer = ResponseWriter(queued_response("a").response, ids=lambda prefix: prefix, kinds=KINDS)
    item = writer.open(Message(role="assistant", content=()))
    words = [f"word{n} " for n in range(6 * MAX_PIECES + 5)]
    for word in words:
        item.write(word)
        writer.take()
    assert retained_bytes(item) < 4 * len("".join(words)), "one string a token takes ten times it"
    for _ in range(2):
        (content,) = item.value.content  # type: ignore[union-attr]
        assert isinstance(content, OutputText) and content.text == "".join(words)

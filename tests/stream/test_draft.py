"""Texts under construction."""

from __future__ import annotations

from antiphon.stream.draft import MAX_PIECES
from antiphon.stream.kinds import KINDS
from antiphon.stream.writer import ResponseWriter
from antiphon.testing.store_checks.runs import queued_response
from antiphon.wire.items import Message, OutputText


def test_long_text_is_not_kept_in_pieces() -> None:
    writer = ResponseWriter(queued_response("a").response, ids=lambda prefix: prefix, kinds=KINDS)
    item = writer.open(Message(role="assistant", content=()))
    words = [f"word{n} " for n in range(3 * MAX_PIECES + 5)]
    for word in words:
        item.write(word)
        writer.take()
    part = item._part
    assert part is not None and len(part.texts) == 5 and len(part.joined_texts) == 3
    for _ in range(2):
        (content,) = item.value.content  # type: ignore[union-attr]
        assert isinstance(content, OutputText) and content.text == "".join(words)

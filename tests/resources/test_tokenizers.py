"""Texts of token ids."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from antiphon.resources.tokenizers import Tokenizers


class _Model:
    """A loaded model and its backend, in one. Notes the threads that convert ids."""

    name = "m"

    def __init__(self) -> None:
        self.backend = self.capabilities = self
        self.detokenizes = True
        self.threads: list[int] = []

    def find(self, name: str | None) -> _Model:
        return self

    async def ready(self) -> bool:
        return True

    def detokenize(self, ids: Sequence[int]) -> str:
        self.threads.append(threading.get_ident())
        return "a" * len(ids)


async def test_many_ids_are_converted_off_the_event_loop() -> None:
    model: Any = _Model()
    for count in (3, 100_000):
        assert await Tokenizers(model).detokenize("m", (5,) * count) == "a" * count
    few, many = model.threads
    assert few == threading.get_ident() != many

"""A model without weights, for fake engines. Its next token depends on the last tokens.

The sampling parameters change its logits as in a real sampler. So a test can see in the output
whether an engine passes on the parameters of a request.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.engines.common.grammar_state import GrammarTracker
from antiphon.engines.huggingface.model_folder import read_folder
from tests.tiny_models.tiny_tools import FOLDER

TOKENIZER = read_folder(FOLDER).tokenizer
SIZE = TOKENIZER.size
SCALE = 3.0


def _is_text(token: int) -> bool:
    try:
        return bool(TOKENIZER.piece(token).decode())
    except UnicodeDecodeError:
        return False


#: What the toy likes less: pieces of characters.
UNLIKED = [0.0 if _is_text(token) else 20.0 for token in range(SIZE)]


class Toy:
    """One generation. Its parameters have the names of vLLM. ``stops``: token ids
    that end the generation."""

    grammars = GrammarTracker(TOKENIZER)

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        temperature: float,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        bias: Mapping[int, float] | None = None,
        presence: float = 0.0,
        frequency: float = 0.0,
        forbidden: Sequence[int] = (),
        grammar: str | None = None,
    ) -> None:
        self.ids = list(prompt)
        self.new: list[int] = []
        self._temperature = temperature
        self._top_k, self._top_p = top_k, top_p
        self._random = random.Random(seed)
        self._bias = bias or {}
        self._presence, self._frequency = presence, frequency
        self._forbidden = forbidden
        self._grammar = None
        if grammar is not None:
            self._grammar = self.grammars.start(grammar, (), TOKENIZER.end_ids)

    def next(self, alternatives: int | None) -> tuple[int, dict[int, float]]:
        """Return the next token id. If requested, also return the log-probabilities of the most
        likely ids and of this id."""
        logits = self._logits()
        total = math.log(sum(map(math.exp, logits)))
        token = self._drawn(self._shaped(logits))
        known: dict[int, float] = {}
        if alternatives is not None:
            best = sorted(range(SIZE), key=lambda id: -logits[id])[:alternatives]
            known = {id: logits[id] - total for id in (*best, token)}
        if self._grammar is not None:
            assert self._grammar.accept((token,))
        self.ids.append(token)
        self.new.append(token)
        return token, known

    def _logits(self) -> list[float]:
        noise = random.Random(repr(self.ids[-3:]))
        return [SCALE * noise.random() - UNLIKED[token] for token in range(SIZE)]

    def _shaped(self, logits: list[float]) -> list[float]:
        shaped = list(logits)
        for id, count in Counter(self.new).items():
            shaped[id] -= self._presence + self._frequency * count
        for id, bias in self._bias.items():
            shaped[id] += bias
        for id in self._forbidden:
            shaped[id] = -math.inf
        if self._grammar is not None:
            for id, no in enumerate(self._grammar.forbidden_tokens(SIZE)):
                if no:
                    shaped[id] = -math.inf
        return shaped

    def _drawn(self, logits: list[float]) -> int:
        ordered = sorted(range(SIZE), key=lambda id: -logits[id])
        if self._temperature == 0 or self._top_k == 1:
            return ordered[0]
        remaining = ordered[: self._top_k] if self._top_k > 0 else ordered
        weights = [
            math.exp((logits[id] - logits[remaining[0]]) / self._temperature) for id in remaining
        ]
        whole, before = sum(weights), 0.0
        for place, weight in enumerate(weights):
            if before >= self._top_p * whole:
                remaining, weights = remaining[:place], weights[:place]
                break
            before += weight
        return self._random.choices(remaining, weights)[0]


def reused(cache: set[tuple[Any, ...]], salt: Any, ids: Sequence[int], block: int = 16) -> int:
    """Return how many tokens at the beginning of ``ids`` are in the cache: whole blocks, but never
    all tokens. Then add all tokens to the cache."""
    blocks = [(salt, *ids[: end + block]) for end in range(0, len(ids) - block + 1, block)]
    found = next((n for n, each in enumerate(blocks) if each not in cache), len(blocks))
    cache.update(blocks)
    return min(found * block, (len(ids) - 1) // block * block)

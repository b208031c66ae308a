"""Sample the tokens of one generation from logits. Needs ``torch``.

Each generation has its own sampler, so one request's settings never affect another request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from antiphon.engines.base import Sampling
from antiphon.engines.common.grammar_state import GrammarState
from antiphon.errors import BackendError
from antiphon.inference.tokens import Alternative, TokenLogprob

if TYPE_CHECKING:
    from torch import Tensor

_NEG_INF = float("-inf")


class Sampler:
    """The sampler of one generation.

    ``prompt``: the ids of the prompt, for the repetition penalty. ``values``: see
    ``sampling_values``. ``end_ids``: the ids of the end tokens, which are masked if the request
    sets ``ignore_eos``. ``grammar``: the state of the request's grammar; None if it has none.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Collection[int],
        *,
        values: Mapping[str, Any],
        end_ids: Collection[int],
        grammar: GrammarState | None = None,
    ) -> None:
        import torch

        self._sampling = sampling
        self._grammar = grammar
        self._temperature: float = values.get("temperature", 1.0)
        self._top_k: int = values.get("top_k", 0)
        self._top_p: float = values.get("top_p", 1.0)
        self._min_p: float = values.get("min_p", 0.0)
        self._presence_penalty: float = values.get("presence_penalty", 0.0)
        self._frequency_penalty: float = values.get("frequency_penalty", 0.0)
        self._repetition_penalty: float = values.get("repetition_penalty", 1.0)
        self._bias = dict(sampling.logit_bias)
        if sampling.ignore_eos:
            self._bias.update(dict.fromkeys(end_ids, _NEG_INF))
        self._penalized = set(prompt) if self._repetition_penalty != 1.0 else set()
        self._counts: dict[int, int] = {}
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed % 2**63)

    def draw(self, logits: Tensor) -> TokenLogprob:
        """Sample the next token. ``logits``: a float32 tensor with one value per token id. This
        method may change the tensor."""
        logprobs = None if self._sampling.logprobs is None else logits.log_softmax(-1)
        self._adjust(logits)
        token = int(logits.argmax()) if self._temperature == 0 else self._sample(logits)
        if self._grammar is not None and not self._grammar.accept((token,)):
            raise BackendError("The grammar failed: it does not match the sampled token.")
        self._count(token)
        return (
            TokenLogprob(token, 0.0) if logprobs is None else self._token_logprob(logprobs, token)
        )

    # --- adjust logits ---------------------------------------------------------------------------

    def _adjust(self, logits: Tensor) -> None:
        import torch

        if self._repetition_penalty != 1.0 and self._penalized:
            at = torch.tensor(sorted(self._penalized), device=logits.device)
            old = logits[at]
            logits[at] = torch.where(
                old < 0, old * self._repetition_penalty, old / self._repetition_penalty
            )
        self._penalize(logits)
        for token, bias in self._bias.items():
            if 0 <= token < len(logits):
                logits[token] += bias
        if self._grammar is not None:
            forbidden = torch.from_numpy(self._grammar.forbidden_tokens(len(logits)))
            logits.masked_fill_(forbidden.to(logits.device), _NEG_INF)

    def _penalize(self, logits: Tensor) -> None:
        presence, frequency = self._presence_penalty, self._frequency_penalty
        if presence or frequency:
            for token, count in self._counts.items():
                logits[token] -= presence + frequency * count

    def _count(self, token: int) -> None:
        self._counts[token] = self._counts.get(token, 0) + 1
        if self._repetition_penalty != 1.0:
            self._penalized.add(token)

    # --- sample ----------------------------------------------------------------------------------

    def _sample(self, logits: Tensor) -> int:
        """Sample with temperature, top_k, top_p and min_p, in this order, as ``transformers`` does.

        The logits of a request depend slightly on the other requests of the batch. Such small
        differences should hardly ever change the sampled token. Therefore, the probabilities are
        summed up in the order of token ids, and one random number selects the token.
        """
        import torch

        probabilities = (logits / self._temperature).double().softmax(-1).cpu()
        min_probability = self._min_probability(probabilities)
        cumulated = torch.where(probabilities >= min_probability, probabilities, 0.0).cumsum(-1)
        point = torch.rand(1, generator=self._random, dtype=torch.float64) * cumulated[-1]
        return min(int(torch.searchsorted(cumulated, point, right=True)), len(probabilities) - 1)

    def _min_probability(self, probabilities: Tensor) -> float:
        """Return the lowest probability that top_k, top_p and min_p allow. Tokens with a lower
        probability are not sampled. ``probabilities``: one probability per token id."""
        count = self._top_k if 0 < self._top_k < len(probabilities) else len(probabilities)
        if count == len(probabilities) and self._top_p >= 1.0:
            return float(probabilities.max()) * self._min_p
        best = probabilities.topk(count).values
        before = best.cumsum(-1) - best
        nucleus = best[before < self._top_p * best.sum()]
        last = float(nucleus[-1] if len(nucleus) else best[0])
        return max(last, float(best[0]) * self._min_p)

    def _token_logprob(self, logprobs: Tensor, token: int) -> TokenLogprob:
        best: tuple[Alternative, ...] = ()
        if count := self._sampling.logprobs:
            values, ids = logprobs.topk(count)
            pairs = zip(ids.tolist(), values.tolist(), strict=True)
            best = tuple(Alternative(id, min(0.0, value)) for id, value in pairs)
        return TokenLogprob(token, min(0.0, float(logprobs[token])), best)

"""Continue one prompt, in as many requests as necessary.

When a server fails during a generation, the next request continues after the last sampled token.
The client cannot see where one request ended and the next request began.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from antiphon.engines.base import Sampling
from antiphon.engines.common.grammar_state import GrammarState, GrammarTracker
from antiphon.engines.common.stop_conditions import EngineOutput, StopConditions
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk, Prompt, Tokenizer

from .constraints import ConstraintEncoder

#: Maximum number of times that one reply is continued after a failure. Without a limit, a request
#: that crashes its server could crash all servers, one after the other.
_MAX_CONTINUATIONS = 10


class ResumableGeneration:
    """One generation, which may need several requests to the server.

    A server can apply a grammar only from the first token of a request. So only the first request
    has a constraint. This class matches the tokens of later requests to the grammar.

    - ``context_left``: number of tokens that still fit into the context.
    - ``constraints``: returns the grammar that the server enforces for a constraint.
    - ``tracker``: returns the state of this grammar after the tokens that were sampled before
      the first failure. The matching of later tokens begins at this state.
    """

    def __init__(
        self,
        prompt: Prompt,
        sampling: Sampling,
        tokenizer: Tokenizer,
        context_left: int,
        constraints: ConstraintEncoder,
        tracker: GrammarTracker,
    ) -> None:
        # SGLang rejects a limit that exceeds the context.
        max_tokens = min(sampling.max_tokens, context_left)
        self._prompt = prompt
        self._sampling = replace(sampling, max_tokens=max_tokens)
        self._stop_conditions = StopConditions(tokenizer, self._sampling, context_left)
        self._end_ids = tokenizer.end_ids | {*sampling.stop_ids}
        self._constraints = constraints
        self._tracker = tracker
        self._sampled: list[int] = []
        #: The number of sampled tokens at the last failure.
        self._sampled_at_failure = 0
        self._continuations = 0
        self._grammar: GrammarState | None = None
        #: The next request samples one token, only from the tokens that match the grammar.
        self._is_masked = False

    @property
    def is_over(self) -> bool:
        """Whether the last chunk was built."""
        return self._stop_conditions.finished

    @property
    def is_continued(self) -> bool:
        """Whether tokens were already sampled. If so, the next request continues after them."""
        return bool(self._sampled)

    async def next_request(self) -> tuple[Prompt, Sampling]:
        """Return the prompt and the sampling options of the next request."""
        if not self._sampled:
            return self._prompt, self._sampling
        prompt = self._prompt.followed_by(self._sampled)
        max_tokens = self._sampling.max_tokens - len(self._sampled)
        sampling = replace(self._sampling, max_tokens=max_tokens, constraint=None)
        if self._is_masked and self._grammar is not None:
            sampling = await asyncio.to_thread(self._grammar.mask, sampling)
        return prompt, sampling

    def feed(self, parsed: EngineOutput) -> tuple[Chunk | None, bool]:
        """Add the tokens that a server has sampled.

        Returns two values: a chunk, and whether another request must follow. The chunk is None if
        all new tokens must be held back, for example because they may be the start of a stop
        string. Raises ``BackendError`` if the server ignores ``logit_bias``.
        """
        parsed, is_rejected = self._match(parsed)
        is_masked, self._is_masked = self._is_masked, is_rejected
        if is_rejected and is_masked:
            raise BackendError("The upstream does not sample the allowed tokens.", permanent=True)
        self._sampled += [token.id for token in parsed.tokens]
        chunk = self._stop_conditions.take(parsed)
        needs_request = is_rejected or (is_masked and bool(parsed.tokens))
        return chunk, needs_request and not self.is_over

    def _match(self, parsed: EngineOutput) -> tuple[EngineOutput, bool]:
        """Return the part of the payload that matches the grammar, and whether the grammar rejects
        the remaining part."""
        if self._grammar is None:
            return parsed, False
        ids = [token.id for token in parsed.tokens]
        count, is_rejected = self._grammar.match(ids, parsed.reason)
        reason = parsed.reason
        if is_rejected or (self._is_masked and reason == "length"):
            reason = None
        return EngineOutput(tokens=parsed.tokens[:count], reason=reason), is_rejected

    async def continue_after(self, error: BackendError) -> bool:
        """Prepare the next request after a failure.

        Returns whether tokens were sampled since the previous failure. If so, the caller must tell
        its retry policy to forget earlier failures. Raises ``error`` if the generation cannot be
        continued.
        """
        has_progress = len(self._sampled) > self._sampled_at_failure
        self._sampled_at_failure = len(self._sampled)
        if not self._sampled:
            return False
        self._continuations += has_progress
        if self._continuations > _MAX_CONTINUATIONS:
            raise error
        constraint = self._sampling.constraint
        if constraint is not None and self._grammar is None:
            lark = self._constraints.enforced_grammar(constraint)
            self._grammar = await asyncio.to_thread(
                self._tracker.start, lark, self._sampled, self._end_ids
            )
            if self._grammar is None and constraint.needed:
                raise error
        return has_progress

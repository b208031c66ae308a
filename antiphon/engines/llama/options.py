"""The ``engine_options`` of the llama engine: samplers of llama.cpp, and speculative decoding.

In speculative decoding, the next tokens are guessed cheaply, and the model checks several guessed
tokens in one pass. There are two ways to guess:

- A small model (the draft model) generates the guess.
- The guess is copied from earlier text. If the latest tokens already occurred earlier in the text,
  the tokens that followed them there are the guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.errors import SetupError

#: llama.cpp's own samplers, for answers that may be any text.
SAMPLER_OPTIONS = (
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
)
ENGINE_OPTIONS = (*SAMPLER_OPTIONS, "speculation", "draft_model", "draft_tokens")
#: Default of the maximum number of tokens per guess, for copies and for a small model. A copy stays
#: right for more tokens than the guess of a small model.
COPY_TOKENS, DRAFT_TOKENS = 8, 3
#: Number of latest tokens that must also occur in the earlier text. Only then the tokens that
#: followed them there are proposed as a copy.
COPIED_TOKENS = 12
_MAX_TOKENS = 64


class Speculation(Struct, frozen=True):
    """Settings of speculative decoding, which guesses the next tokens.

    ``tokens``: maximum number of tokens per guess. ``draft_model``: the small model that guesses.
    If None, guesses are copied from earlier text.
    """

    tokens: int
    draft_model: Path | None = None

    def apply(self, params: Any) -> None:
        """Turn on speculative decoding in ``params``, which is llama.cpp's ``CommonParams``."""
        from xllamacpp import common_speculative_type

        speculative = params.speculative
        if self.draft_model is not None:
            speculative.types = [common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            speculative.draft.mparams.path = str(self.draft_model)
            speculative.draft.n_max = self.tokens
            for threads in (speculative.draft.cpuparams, speculative.draft.cpuparams_batch):
                threads.n_threads = params.cpuparams.n_threads
            return
        # NGRAM_MAP_K searches the text of its own generation only. NGRAM_MOD searches the texts of
        # all tenants, so its speed would reveal texts of other tenants.
        speculative.types = [common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K]
        speculative.ngram_map_k.size_n = COPIED_TOKENS
        speculative.ngram_map_k.size_m = self.tokens


class EngineOptions(Struct, frozen=True):
    """The ``engine_options`` of a model, parsed. ``samplers``: name of an option from
    ``SAMPLER_OPTIONS`` → value of the option. ``speculation``: the settings of speculative
    decoding, or None if it is off."""

    samplers: Mapping[str, float] = {}
    speculation: Speculation | None = None


def parse_engine_options(options: Mapping[str, Any]) -> EngineOptions:
    """Parse ``engine_options``. Raises ``SetupError`` for an unknown name or an invalid value."""
    for name in options:
        if name not in ENGINE_OPTIONS:
            known = ", ".join(ENGINE_OPTIONS)
            raise SetupError(f"llama.cpp has no engine option {name!r} (there are: {known})")
    samplers = {name: options[name] for name in SAMPLER_OPTIONS if name in options}
    for name, value in samplers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise SetupError(f"the engine option {name} must be a number from 0, not {value!r}")
    return EngineOptions(samplers, _speculation(options))


def _speculation(options: Mapping[str, Any]) -> Speculation | None:
    kind, draft = options.get("speculation", "none"), options.get("draft_model")
    if kind not in ("none", "copy"):
        raise SetupError(f"the engine option speculation must be 'copy' or 'none', not {kind!r}")
    if draft is not None and not isinstance(draft, str):
        raise SetupError(f"the engine option draft_model must be a path, not {draft!r}")
    if draft is not None and kind == "copy":
        raise SetupError("the engine options speculation and draft_model exclude each other")
    if draft is None and kind == "none":
        if "draft_tokens" in options:
            raise SetupError("the engine option draft_tokens needs speculation or draft_model")
        return None
    tokens = options.get("draft_tokens", DRAFT_TOKENS if draft else COPY_TOKENS)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= _MAX_TOKENS:
        raise SetupError(
            f"the engine option draft_tokens must be from 1 to {_MAX_TOKENS}, not {tokens!r}"
        )
    return Speculation(tokens, None if draft is None else Path(draft).expanduser())

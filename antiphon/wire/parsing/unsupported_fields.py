"""Fields that Antiphon does not know.

A field of another API that would change the answer is refused, and so is a misspelt field, because
ignoring it would mislead the client. The fields of other APIs belong to OpenAI's older APIs, vLLM,
SGLang, llama.cpp, Ollama and DashScope. All other unknown fields are ignored, and the response
names them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from antiphon.errors import InvalidRequest, unsupported_parameter
from antiphon.support.text import similar_name

from .errors import truncated

_MAX_IGNORED = 32  # names in the response
_misspelt = lru_cache(maxsize=256)(similar_name)

#: Field → values that have no effect.
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_content_format": ("auto",),
    "continue_final_message": (False,),
    "continuous_usage_stats": (False,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "ebnf": (),
    "echo": (False,),
    "enable_thinking": (),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "images": ([],),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "logprobs": (False,),
    "min_tokens": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "n_predict": (-1,),
    "normalize": (True,),
    "num_predict": (-1,),
    "prompt_logprobs": (False,),
    "regex": (),
    "repeat_penalty": (1,),
    "return_token_ids": (False,),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "top_a": (0,),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}


def refuse_unsupported_fields(
    raw: Mapping[str, object], known: Collection[str] = (), path: str | None = None
) -> None:
    """Raise ``InvalidRequest`` if the request has a field of another API, unless the field's value
    has no effect in that API.

    ``known``: fields of other APIs that the called endpoint supports. ``path``: path of the object
    that contains the fields; None for the body.
    """
    if _NEUTRAL_VALUES.keys().isdisjoint(raw):
        return
    for name, value in raw.items():
        if name in _NEUTRAL_VALUES and name not in known and value not in _NEUTRAL_VALUES[name]:
            field = name if path is None else f"{path}.{name}"
            raise unsupported_parameter(field)


def find_ignored_fields(raw: Mapping[str, object], known: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the fields that are ignored: those that are neither ``known`` nor fields
    of other APIs without effect. Raises ``InvalidRequest`` for a misspelt field."""
    if raw.keys() <= known:
        return ()
    ignored = [
        name
        for name, value in raw.items()
        if name not in known and name not in _NEUTRAL_VALUES and value != []
    ]
    for name in ignored:
        if meant := _misspelt(truncated(name), known):
            shown = truncated(name)
            raise InvalidRequest(
                f"Unknown parameter: '{shown}'. Did you mean '{meant}'?",
                param=shown,
                code="unknown_parameter",
            )
    return tuple(map(truncated, ignored[:_MAX_IGNORED]))

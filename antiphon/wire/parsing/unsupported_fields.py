"""Refuse fields of other APIs that would change the answer.

The fields belong to OpenAI's older APIs, vLLM, SGLang, llama.cpp, Ollama and DashScope. Ignoring
such a field would mislead the client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from antiphon.errors import InvalidRequest

__all__ = ["refuse_unsupported_fields"]

#: Field → values that have no effect.
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
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
    "stop_token_ids": ([],),
    "suffix": ("",),
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
            raise InvalidRequest(
                f"Unsupported parameter: '{field}' is not supported by this server.",
                param=field,
                code="unsupported_parameter",
            )

"""What a Hugging Face folder says of its model besides the weights: its tokenizer and its card.

Every file but ``tokenizer.json`` may be missing. It knows the files, not who generates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.tokens import ModelCard

from .tokenizer import FastTokenizer

__all__ = ["ModelFolder", "read_folder"]

TOKENIZER_FILE = "tokenizer.json"
#: Where the files do not say.
DEFAULT_CONTEXT = 8192
#: Where configurations tell how many positions a model has.
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_sequence_length",
    "seq_length",
)
#: Of ``generation_config.json``: what is meant for sampling.
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

Json = Mapping[str, Any]


class ModelFolder(Struct, frozen=True):
    """All that the files say."""

    tokenizer: FastTokenizer
    card: ModelCard


def read_folder(
    path: Path, *, name: str | None = None, context_size: int | None = None
) -> ModelFolder:
    """Read the folder ``path``, or the one that the ``tokenizer.json`` ``path`` is in.

    ``context_size``: at most what the model was made for, and by default that. Raises
    ``SetupError``: a file cannot be read, the tokenizer is missing or unsupported, or the extra is
    not installed.
    """
    path = path.expanduser()
    folder = path if path.is_dir() else path.parent
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise SetupError(f"{file} is not there: it is what tells how the model's text is written.")
    config, generation, tokenizer_config = (
        _read_object(folder / name)
        for name in ("config.json", "generation_config.json", "tokenizer_config.json")
    )
    inner = {**config, **_text_config(config)}
    tokenizer = FastTokenizer(
        file,
        end_tokens=[
            *_end_tokens(generation),
            *_end_tokens(config),
            *_end_tokens(inner),
            *_end_tokens(tokenizer_config),
        ],
        size=int(inner.get("vocab_size") or 0),
    )
    return ModelFolder(
        tokenizer, _card(folder, tokenizer, inner, generation, tokenizer_config, name, context_size)
    )


def _card(
    folder: Path,
    tokenizer: FastTokenizer,
    config: Json,
    generation: Json,
    tokenizer_config: Json,
    name: str | None,
    context_size: int | None,
) -> ModelCard:
    templates = dict(_templates(folder, tokenizer_config))
    first = tokenizer.bos_id
    adds = tokenizer_config.get("add_bos_token")
    bos = _token(tokenizer_config, "bos_token") or tokenizer.literal(
        _int_or_none(config.get("bos_token_id"))
    )
    kind = config.get("model_type")
    return ModelCard(
        name=name or folder.name,
        context_size=_context_size(config, context_size),
        chat_template=templates.pop("default", None),
        chat_templates=templates,
        bos_token=bos,
        eos_token=_token(tokenizer_config, "eos_token")
        or tokenizer.literal(_int_or_none(next(_end_tokens(config), None))),
        add_bos=adds
        if isinstance(adds, bool)
        else first is not None and first == _token_id(tokenizer, bos),
        architecture=kind.replace("_", "-") if isinstance(kind, str) else None,
        fingerprint=tokenizer.fingerprint,
        generation=_sampling(generation),
    )


def _read_object(file: Path) -> dict[str, Any]:
    """An object; empty where there is no file."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SetupError(f"{file} cannot be read: {error}") from None


def _text_config(config: Json) -> Json:
    """Models of several kinds of input keep what is said of text apart."""
    inner = config.get("text_config") or config.get("llm_config") or {}
    return {k: v for k, v in inner.items() if v is not None} if isinstance(inner, dict) else {}


def _end_tokens(table: Json) -> Iterator[int | str]:
    ids = table.get("eos_token_id")
    yield from (id for id in (ids if isinstance(ids, list) else [ids]) if isinstance(id, int))
    literal = _token(table, "eos_token")
    if literal is not None:
        yield literal


def _token(table: Json, name: str) -> str | None:
    token = table.get(name)
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _int_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _token_id(tokenizer: FastTokenizer, literal: str | None) -> int | None:
    return None if literal is None else tokenizer.id_of(literal)


def _context_size(config: Json, requested: int | None) -> int:
    trained = next((config[key] for key in _CONTEXT_KEYS if isinstance(config.get(key), int)), None)
    if trained is None:
        return requested or DEFAULT_CONTEXT
    return min(requested or int(trained), int(trained))


def _sampling(generation: Json) -> dict[str, Any]:
    return {name: generation[name] for name in _SAMPLING_KEYS if generation.get(name) is not None}


def _templates(folder: Path, tokenizer_config: Json) -> Iterator[tuple[str, str]]:
    """Chat templates by name; the later of one name are the ones that count."""
    inside = tokenizer_config.get("chat_template")
    if isinstance(inside, str):
        yield "default", inside
    elif isinstance(inside, list):
        yield from ((each["name"], each["template"]) for each in inside)
    beside = _read_object(folder / "chat_template.json").get("chat_template")
    if isinstance(beside, str):
        yield "default", beside
    if (file := folder / "chat_template.jinja").is_file():
        yield "default", file.read_text(encoding="utf-8")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        yield file.stem, file.read_text(encoding="utf-8")

"""Read the tokenizer and the model card from a Hugging Face model folder. The weights are not read.

All files except ``tokenizer.json`` are optional.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.inference.tokens import ModelCard

from .tokenizer import FastTokenizer

TOKENIZER_FILE = "tokenizer.json"
#: Context size in tokens if the files state none.
DEFAULT_CONTEXT = 8192
#: Configuration keys for the number of positions.
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_sequence_length",
    "seq_length",
)
#: Sampling fields of ``generation_config.json``.
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

Json = Mapping[str, Any]


class ModelFolder(Struct, frozen=True):
    """The tokenizer and the model card that ``read_folder`` reads from a model folder."""

    tokenizer: FastTokenizer
    card: ModelCard


def read_folder(
    path: Path, *, name: str | None = None, context_size: int | None = None
) -> ModelFolder:
    """Read a model folder. ``path`` is the folder, or the ``tokenizer.json`` in it.

    ``context_size``: an upper limit on the model's own context size, in tokens. Raises
    ``SetupError`` if a file cannot be read, if the tokenizer is missing or unsupported, or if the
    library ``tokenizers`` is not installed.
    """
    path = path.expanduser()
    folder = path if path.is_dir() else path.parent
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise SetupError(f"{file} does not exist; the model's tokenizer is required.")
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
    first_id = tokenizer.bos_id
    add_bos = tokenizer_config.get("add_bos_token")
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
        add_bos=add_bos
        if isinstance(add_bos, bool)
        else first_id is not None and first_id == _token_id(tokenizer, bos),
        architecture=kind.replace("_", "-") if isinstance(kind, str) else None,
        fingerprint=tokenizer.fingerprint,
        generation=_sampling(generation),
    )


def _read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Return an empty dict if the file does not exist."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SetupError(f"{file} cannot be read: {error}") from None


def _text_config(config: Json) -> Json:
    """Return the part of a multimodal configuration that describes the text model. Return an empty
    mapping if the configuration has no such part."""
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
    """Yield the name and the text of each chat template. A later template replaces an earlier
    template of the same name."""
    embedded = tokenizer_config.get("chat_template")
    if isinstance(embedded, str):
        yield "default", embedded
    elif isinstance(embedded, list):
        yield from ((each["name"], each["template"]) for each in embedded)
    separate = _read_object(folder / "chat_template.json").get("chat_template")
    if isinstance(separate, str):
        yield "default", separate
    if (file := folder / "chat_template.jinja").is_file():
        yield "default", file.read_text(encoding="utf-8")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        yield file.stem, file.read_text(encoding="utf-8")

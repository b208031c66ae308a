"""Descriptions of models in the form of Ollama's API."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field, json

from antiphon.wire.json_types import JsonObject

from .answer import ollama_time
from .bodies import OPTION_FIELDS

#: The version of Ollama whose API this server has. Clients refuse servers that are too old.
OLLAMA_VERSION = "0.30.0"
_SIZE = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,2})?[bm])(?![a-z0-9])", re.IGNORECASE)
_QUANTIZATION = re.compile(r"(?:I?Q\d(?:_[A-Z0-9]{1,2}){0,3}|BF16|F16|F32)(?![A-Z0-9])")
#: The time when a model is unloaded that stays loaded, as in Ollama.
_NEVER = "2318-01-01T00:00:00Z"


class OllamaError(Struct, frozen=True):
    """An error. Ollama's errors are texts."""

    error: str


class OllamaVersion(Struct, frozen=True):
    version: str = OLLAMA_VERSION


class OllamaModelDetails(Struct, frozen=True, kw_only=True):
    """What the name and the source of a model say about it. Unknown values are empty texts."""

    parent_model: str = ""
    format: str
    family: str = ""
    families: tuple[str, ...] = ()
    parameter_size: str
    quantization_level: str


class OllamaModel(Struct, frozen=True, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaModelDetails
    capabilities: tuple[str, ...]


class OllamaModelList(Struct, frozen=True):
    models: tuple[OllamaModel, ...]


class OllamaRunningModel(Struct, frozen=True, kw_only=True):
    """A loaded model. ``size_vram`` is 0, because this server does not know how much of the model
    is in the memory of a GPU."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaModelDetails
    context_length: int
    expires_at: str = _NEVER
    size_vram: int = 0


class OllamaRunningModels(Struct, frozen=True):
    models: tuple[OllamaRunningModel, ...]


class OllamaShow(Struct, frozen=True, kw_only=True):
    """The description of a model. ``parameters``: its default options, one per line."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaModelDetails
    model_info: JsonObject
    capabilities: tuple[str, ...]
    modified_at: str


class OllamaProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line about a download. ``digest``: the file. ``total``, ``completed``: its bytes."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


class OllamaEmbedAnswer(Struct, frozen=True, kw_only=True):
    model: str
    embeddings: tuple[tuple[float, ...], ...]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingAnswer(Struct, frozen=True):
    embedding: tuple[float, ...]


class ModelFacts(Struct, frozen=True, kw_only=True):
    """What the server knows about a model.

    - ``name``: the name or alias under which it is listed.
    - ``created``: Unix time.
    - ``source``: where the files come from; "" if the model has no files here.
    - ``size_bytes``, ``memory_bytes``: 0 if unknown.
    - ``context_size``: None if unknown.
    - ``defaults``: the sampling options that a request need not set.
    """

    name: str
    created: int
    capabilities: tuple[str, ...]
    source: str = ""
    size_bytes: int = 0
    memory_bytes: int = 0
    context_size: int | None = None
    template: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def _digest(self) -> str:
        """A digest that changes with the model's name and source. The real one would need a read
        of all files."""
        return hashlib.sha256(f"{self.name} {self.source}".encode()).hexdigest()

    @property
    def _details(self) -> OllamaModelDetails:
        text = f"{self.name} {self.source}"
        size, quantization = _SIZE.search(text), _QUANTIZATION.search(text.upper())
        return OllamaModelDetails(
            format="gguf" if "gguf" in text.lower() else "",
            parameter_size="" if size is None else size[1].upper(),
            quantization_level="" if quantization is None else quantization[0],
        )

    def listing(self) -> OllamaModel:
        """Return the model's entry in the list of models."""
        name = listed_name(self.name)
        return OllamaModel(
            name=name,
            model=name,
            modified_at=ollama_time(self.created),
            size=self.size_bytes,
            digest=self._digest,
            details=self._details,
            capabilities=self.capabilities,
        )

    def running(self) -> OllamaRunningModel:
        """Return the model's entry in the list of loaded models."""
        name = listed_name(self.name)
        return OllamaRunningModel(
            name=name,
            model=name,
            size=self.memory_bytes or self.size_bytes,
            digest=self._digest,
            details=self._details,
            context_length=self.context_size or 0,
        )

    def show(self) -> OllamaShow:
        """Return the description of the model. Clients read the size of the context below the name
        of the architecture, for which this server has no better value than its own name."""
        info: JsonObject = {
            "general.architecture": "antiphon",
            "general.basename": self.name,
        }
        if self.context_size is not None:
            info["antiphon.context_length"] = self.context_size
        return OllamaShow(
            modelfile=f"# Configured in the settings.\nFROM {self.source or self.name}\n",
            parameters=_parameters(self.defaults),
            template=self.template,
            details=self._details,
            model_info=info,
            capabilities=self.capabilities,
            modified_at=ollama_time(self.created),
        )


def _parameters(defaults: Mapping[str, Any]) -> str:
    """Return default options under Ollama's names, as the lines of a Modelfile: a list has one line
    for each value. Options that Ollama lacks are left out."""
    return "\n".join(
        f"{option:<30} {json.encode(value).decode()}"
        for option, name in OPTION_FIELDS.items()
        if (default := defaults.get(name)) is not None
        for value in (default if isinstance(default, list | tuple) else (default,))
    )


def listed_name(name: str) -> str:
    """Return a model's name with a tag, as Ollama lists it."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def matching_name(wanted: str, names: tuple[str, ...]) -> str | None:
    """Return the name that a client means: names differ neither in their case nor in the tag
    ``latest``. Returns None if there is no such name."""
    if wanted in names:
        return wanted
    forms = {listed_name(name).lower(): name for name in reversed(names)}
    return forms.get(listed_name(wanted).lower())

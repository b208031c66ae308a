"""Types of ``/antiphon/added-models``, the API with which operators add models while the server
runs, and of the search for such models."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

#: A name, also in the path of a URL: none of its segments is empty, "." or "..".
_NAME = r"^(?!(.*/)?\.{0,2}(/|$))[A-Za-z0-9_.:/-]{1,128}$"


class ModelOptions(Struct, frozen=True, kw_only=True):
    """Options of a model that operators can set over the API; null: the default. They have the
    same names in the settings, where they are explained."""

    context_size: Annotated[int, Meta(ge=256)] | None = None
    idle_unload_s: Annotated[float, Meta(ge=0)] | None = None
    instructions: Annotated[str, Meta(min_length=1, max_length=100_000)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None


class AddModel(ModelOptions, frozen=True, kw_only=True):
    """A request to add a model. ``source``: a repository of Hugging Face, such as
    ``owner/repo:Q4_K_M`` or ``hf:owner/repo/file.gguf``. ``name``: the name for requests; the
    default is the name of the repository."""

    source: Annotated[str, Meta(max_length=200)]
    name: Annotated[str, Meta(pattern=_NAME)] | None = None


class AddedModel(ModelOptions, frozen=True, kw_only=True):
    """A model that an operator has added."""

    id: str
    object: Literal["antiphon.added_model"] = "antiphon.added_model"
    source: str


class AddedModelList(Struct, frozen=True, kw_only=True):
    """The models that operators have added."""

    object: Literal["list"] = "list"
    data: tuple[AddedModel, ...]


class FoundModel(Struct, frozen=True, kw_only=True):
    """A model that operators can add.

    - ``size_bytes``: size of the download; null if unknown.
    - ``licence``, ``good_for``: in words; null if unknown.
    - ``problem``: why the model does not fit this machine; null if it fits, or if this is unknown.
    - ``is_suggested``: whether it is one of the models that Antiphon suggests.
    - ``downloads``: downloads in the last month; null if unknown.
    """

    name: str
    source: str
    size_bytes: int | None = None
    licence: str | None = None
    good_for: str | None = None
    problem: str | None = None
    is_suggested: bool = False
    downloads: int | None = None


class FoundModelList(Struct, frozen=True, kw_only=True):
    """Models that operators can add. ``problem``: why Hugging Face could not be searched."""

    object: Literal["list"] = "list"
    data: tuple[FoundModel, ...]
    problem: str | None = None

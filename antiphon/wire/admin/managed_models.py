"""Types of the responses of ``/antiphon/models``, the API with which operators list, load, unload
and download the served models."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from antiphon.wire.models import ModelStatus


class ManagedModel(Struct, frozen=True, kw_only=True):
    """A served model and its state.

    - ``status``: whether the model is loaded, and the progress while it loads; the same object as
      in ``/v1/models``.
    - ``can_unload``: whether operators can load and unload the model. They cannot if the model
      runs on another server.
    - ``source``: where the model's files come from; null for a model without files.
    - ``size_bytes``: size of these files on this machine; null for a model without files, and
      before the files are downloaded.
    - ``memory_bytes``: estimated memory of the model when it is loaded; null if unknown.
    - ``prompt_cache``: the states of prompts that the model's engine keeps; null if the model is
      not loaded or its engine does not tell.
    - ``threads``: number of CPU threads that compute a token of one request; null if the model is
      not loaded or its engine does not tell.
    - ``running_requests``: number of requests that use the model or wait for it; always 0 for a
      model on another server.
    """

    id: str
    object: Literal["antiphon.model"] = "antiphon.model"
    aliases: tuple[str, ...]
    engine: str
    source: str | None
    status: ModelStatus
    can_unload: bool
    size_bytes: int | None
    memory_bytes: int | None
    context_size: int | None
    prompt_cache: PromptCache | None
    threads: int | None
    running_requests: int


class PromptCache(Struct, frozen=True, kw_only=True):
    """The states of prompts that an engine keeps, so that prompts that begin in the same way need
    not be computed again.

    - ``states``, ``bytes``: how many there are, and their size in memory. ``limit_bytes``: the
      limit of this size (setting ``prompt_cache_mb``). ``disk_bytes``: their size on disk.
    - ``hits``, ``misses``: prompts that continued an earlier state, and other prompts.
    - ``evictions``: states that were deleted because of the limit.
    """

    states: int
    bytes: int
    limit_bytes: int
    disk_bytes: int
    hits: int
    misses: int
    evictions: int


class ModelMemory(Struct, frozen=True, kw_only=True):
    """Estimated memory of all loaded models, and the memory budget. A budget of null means no
    limit."""

    used_bytes: int
    budget_bytes: int | None


class ManagedModelList(Struct, frozen=True, kw_only=True):
    """All served models."""

    object: Literal["list"] = "list"
    data: tuple[ManagedModel, ...]
    memory: ModelMemory


class PullProgress(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="antiphon.pull.progress"
):
    """Progress of downloading one file, in bytes."""

    file: str
    bytes: int
    total_bytes: int | None


class PullCompleted(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="antiphon.pull.completed"
):
    """The last event of a successful download: all files are on the server's machine."""

    model: ManagedModel


class PullFailed(Struct, frozen=True, kw_only=True, tag_field="type", tag="antiphon.pull.failed"):
    """The last event of a failed download."""

    message: str


PullEvent = PullProgress | PullCompleted | PullFailed

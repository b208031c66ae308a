"""A memory budget for loaded models. The least recently used models are unloaded to make room for
the next model."""

from __future__ import annotations

import asyncio
from typing import Protocol

from antiphon.errors import SetupError

__all__ = ["BudgetedModel", "MemoryBudget"]

_MIB = 2**20


class BudgetedModel(Protocol):
    """A loaded copy of a model that counts towards the budget."""

    @property
    def memory_bytes(self) -> int: ...
    @property
    def is_evictable(self) -> bool:
        """Whether the model is loaded and is not being unloaded yet."""

    @property
    def is_retired(self) -> bool: ...
    @property
    def is_in_use(self) -> bool: ...
    @property
    def last_used(self) -> float: ...

    def retire(self) -> None:
        """Accept no new requests, and unload the model as soon as no request uses it."""


class MemoryBudget:
    """Limit for the bytes that loaded models use together. ``limit_bytes``: None for no limit.

    Loads get memory in the order of their requests. Use it from one event loop only.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._models: list[BudgetedModel] = []
        self._queue = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def used_bytes(self) -> int:
        """The estimated memory of the models that are loaded, being loaded or being unloaded."""
        return sum(model.memory_bytes for model in self._models)

    async def reserve(self, name: str, model: BudgetedModel, *, evict: bool = True) -> bool:
        """Reserve the memory of ``model``, which is about to be loaded under ``name``.

        If the model does not fit, the least recently used models are unloaded. Idle models are
        unloaded first, then models in use, which finish their running requests. With
        ``evict=False``, no model is unloaded, and False is returned if ``model`` does not fit.
        Raises ``SetupError`` if the model can never fit.
        """
        limit = self.limit_bytes
        if limit is not None and model.memory_bytes > limit:
            raise SetupError(
                f"model {name} needs about {model.memory_bytes // _MIB} MiB, more than"
                f" model_memory_mb allows ({limit // _MIB} MiB)"
            )
        async with self._queue:
            while limit is not None and self.used_bytes + model.memory_bytes > limit:
                if not evict:
                    return False
                self._changed.clear()
                self._evict(self.used_bytes + model.memory_bytes - limit)
                await self._changed.wait()
            self._models.append(model)
        return True

    def release(self, model: BudgetedModel) -> None:
        """Return the memory of a model that is unloaded or could not be loaded."""
        if model in self._models:
            self._models.remove(model)
            self._changed.set()

    def notify(self) -> None:
        """Wake the load that waits for memory, because a model has become evictable."""
        self._changed.set()

    def _evict(self, missing: int) -> None:
        """Retire models until ``missing`` bytes are free or will become free. Memory of models that
        were retired earlier counts as free."""
        missing -= sum(model.memory_bytes for model in self._models if model.is_retired)
        evictable = [model for model in self._models if model.is_evictable]
        for model in sorted(evictable, key=lambda model: (model.is_in_use, model.last_used)):
            if missing <= 0:
                return
            missing -= model.memory_bytes
            model.retire()

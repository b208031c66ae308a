"""A memory budget for loaded models. If the next model does not fit, the least recently used models
are unloaded."""

from __future__ import annotations

import asyncio
from typing import Protocol

from antiphon.errors import SetupError

_MIB = 2**20


class BudgetedModel(Protocol):
    """One copy of a model. It uses memory of the budget from the start of its loading to the end of
    its unloading.

    A retired copy gets no new requests and is unloaded when no request uses it.
    """

    @property
    def memory_bytes(self) -> int: ...
    @property
    def is_evictable(self) -> bool:
        """Whether the model may be unloaded to make room for another model. This is the case if the
        model is loaded and ``retire`` has not been called."""

    @property
    def is_retired(self) -> bool: ...
    @property
    def is_in_use(self) -> bool: ...
    @property
    def last_used(self) -> float: ...

    def retire(self) -> None:
        """Stop accepting new requests, and unload the model as soon as no request uses it."""


class MemoryBudget:
    """A limit for the total memory of loaded models.

    ``limit_bytes``: the limit; None if there is no limit. Calls of ``reserve`` get memory in the
    order of the calls. Use a ``MemoryBudget`` on one event loop only.
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
        """Reserve memory for ``model`` before the model is loaded. Return whether the memory is
        reserved. ``name``: the name of the model for error messages.

        ``evict``: whether other models may be unloaded.

        - If True, and if the model does not fit, the least recently used models are unloaded, and
          the call waits until their memory is free. Idle models are unloaded first. Models in use
          are unloaded when their running requests have ended.
        - If False, and if the model does not fit, the call returns False.

        Raises ``SetupError`` if the model needs more than the whole budget.
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
        """Give the memory of a model back to the budget. Called when the model is unloaded or could
        not be loaded."""
        if model in self._models:
            self._models.remove(model)
            self._changed.set()

    def notify(self) -> None:
        """Wake the call of ``reserve`` that waits for memory. Called when a model has become
        evictable, so this model can be unloaded to free memory."""
        self._changed.set()

    def _evict(self, missing: int) -> None:
        """Retire models until the retired models occupy at least ``missing`` bytes together. Models
        that were retired earlier count too. The memory becomes free when the models are unloaded.

        ``missing``: the number of bytes that must become free.
        """
        missing -= sum(model.memory_bytes for model in self._models if model.is_retired)
        evictable = [model for model in self._models if model.is_evictable]
        for model in sorted(evictable, key=lambda model: (model.is_in_use, model.last_used)):
            if missing <= 0:
                return
            missing -= model.memory_bytes
            model.retire()

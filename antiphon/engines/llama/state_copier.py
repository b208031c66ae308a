"""Copy states between llama.cpp's slots and files, by calls to llama.cpp's server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from .process import LlamaProcess
from .state_files import StateFile, StateFiles

_log = structlog.get_logger(__name__)


class LlamaStateCopier:
    """``StateCopier`` of one llama.cpp process. ``adapters``: the names of the LoRA adapters.
    ``can_cut``: whether the model's states can be cut at any id."""

    def __init__(
        self,
        process: LlamaProcess,
        files: StateFiles,
        adapters: Sequence[str],
        can_cut: bool = True,
    ) -> None:
        self._process = process
        self._files = files
        self._adapters = adapters
        self._can_cut = can_cut

    async def save(self, slot: int, ids: Sequence[int], adapter: str | None) -> StateFile | None:
        if not self._can_cut and min(ids) >= 0:
            # After a restore, llama.cpp goes back to a checkpoint, also if the prompt continues the
            # whole state. So let it make one at the last id.
            await self._compute(slot, ids, adapter, reuse=True)
        file = self._files.create()
        if file is None:
            return None
        if await self._post(f"/slots/{slot}?action=save", {"filename": file.name}):
            return file
        file.close()
        return None

    async def restore(
        self, slot: int, file: StateFile, adapter: str | None, changes_adapter: bool
    ) -> bool | None:
        if changes_adapter and self._adapters:
            # llama.cpp empties a slot whose adapter changes. So let it change before.
            if not await self._compute(slot, (0,), adapter, reuse=False):
                return None
        return await self._post(f"/slots/{slot}?action=restore", {"filename": file.name})

    async def cut(self, slot: int, ids: Sequence[int], adapter: str | None) -> bool:
        if not ids or not self._can_cut or min(ids) < 0:  # images have negative ids
            return bool(await self._post(f"/slots/{slot}?action=erase", {})) and not ids
        # llama.cpp cuts a state to what it shares with a prompt, and computes the prompt's last id.
        return bool(await self._compute(slot, ids, adapter, reuse=True))

    async def _compute(
        self, slot: int, ids: Sequence[int], adapter: str | None, *, reuse: bool
    ) -> bool | None:
        request = {
            "prompt": ids,
            "max_tokens": 1,
            "id_slot": slot,
            "cache_prompt": reuse,
            "lora": lora_scales(self._adapters, adapter),
        }
        return await self._post("/completion", request)

    async def _post(self, target: str, body: Any) -> bool | None:
        """Send a request. Returns None if llama.cpp has ended, and False if it refuses it."""
        try:
            answer = await self._process.client.post(target, body)
        except OSError:
            return None
        except ValueError as error:
            answer = {"error": {"message": str(error)}}
        if "error" in answer:
            _log.warning("llama.cpp cannot copy a state", reason=answer["error"].get("message"))
            return False
        return True


def lora_scales(adapters: Sequence[str], used: str | None) -> list[dict[str, Any]]:
    """Return llama.cpp's field ``lora``: the scale of each adapter, so that only ``used`` has an
    effect."""
    return [{"id": n, "scale": float(name == used)} for n, name in enumerate(adapters)]

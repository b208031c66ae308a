"""The real model that tests run: fetched once, then shared by every checkout of this user."""

from __future__ import annotations

import asyncio
from pathlib import Path

from antiphon.models.download import ensure_default

__all__ = ["smollm2"]


def smollm2() -> Path:
    """The file of the default model, SmolLM2-135M-Instruct; 98 MB are fetched where it is missing.

    Not for use inside an event loop.
    """
    return asyncio.run(ensure_default(Path.home() / ".cache" / "antiphon" / "models"))

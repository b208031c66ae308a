"""The real model that tests run: downloaded once, then shared by all checkouts of this user."""

from __future__ import annotations

import asyncio
from pathlib import Path

from antiphon.models.download import ensure_default

__all__ = ["smollm2"]


def smollm2() -> Path:
    """The file of the default model, SmolLM2-135M-Instruct; downloads 98 MB if it is missing.

    Do not call it inside an event loop.
    """
    return asyncio.run(ensure_default(Path.home() / ".cache" / "antiphon" / "models"))

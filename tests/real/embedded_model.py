"""A real model for tests. It is downloaded once to a folder that all checkouts of the user
share."""

from __future__ import annotations

import asyncio
from pathlib import Path

from antiphon.models.download import ensure_default


def smollm2() -> Path:
    """Return the file of the default model, SmolLM2-135M-Instruct. Downloads 98 MB if the file is
    missing.

    Do not call this function inside an event loop.
    """
    return asyncio.run(ensure_default(Path.home() / ".cache" / "antiphon" / "models"))

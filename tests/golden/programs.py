"""What the stories of programs run in, the same each time: a seal that hides nothing, and Python
that is only played."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache

from antiphon.sandbox.javascript import JavaScript
from antiphon.security.encryption import Encryptor
from antiphon.tools.base import ToolProvider
from antiphon.tools.programs.provider import ProgramProvider

__all__ = ["programs"]


class Clear(Encryptor):
    """No seal at all."""

    def __init__(self) -> None: ...

    def seal(self, content: bytes, *, purpose: str, tenant: str) -> str:
        return base64.urlsafe_b64encode(content).decode()

    def open(self, text: str, *, purpose: str, tenant: str) -> bytes:
        return base64.urlsafe_b64decode(text)


@cache
def _javascript() -> JavaScript:
    """It takes a second to be made."""
    return JavaScript(step_s=0.5)


def programs() -> Mapping[str, ToolProvider]:
    """What brings them."""
    made = ProgramProvider(_javascript(), Clear(), clock=lambda: 1000.0)
    return {"programmatic_tool_calling": made}

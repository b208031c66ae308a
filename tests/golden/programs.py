"""The provider of programs for stories, with reproducible fingerprints."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache

from antiphon.sandbox.javascript import JavaScript
from antiphon.security.encryption import Encryptor
from antiphon.tools.base import AnyToolProvider
from antiphon.tools.programs.provider import ProgramProvider


class PlainEncryptor(Encryptor):
    """Encodes without encrypting, so that fingerprints are the same in every run."""

    def __init__(self) -> None: ...

    def encrypt(self, content: bytes, *, purpose: str, tenant: str) -> str:
        return base64.urlsafe_b64encode(content).decode()

    def decrypt(self, text: str, *, purpose: str, tenant: str) -> bytes:
        return base64.urlsafe_b64decode(text)


@cache
def _javascript() -> JavaScript:
    """Return the interpreter, which takes a second to start."""
    return JavaScript(step_s=0.5)


def programs() -> Mapping[str, AnyToolProvider]:
    """Return the provider of programs by its tool type."""
    provider = ProgramProvider(_javascript(), PlainEncryptor(), clock=lambda: 1000.0)
    return {"programmatic_tool_calling": provider}

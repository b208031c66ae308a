"""Whether JSON obeys a schema, by a validator that knows every keyword, in a process of its own;
and what of grammars would take long.

For what no grammar can hold a model to. It knows no model and no answer, only schemas and texts.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from antiphon.errors import InvalidRequest

__all__ = ["SchemaValidator", "grammar_fault"]

_WORKER = Path(__file__).with_name("validator_worker.py")
_SECONDS = 10.0
_SLOW = "it takes too long to check."


class _Said(msgspec.Struct, frozen=True):
    fault: str | None = None
    schema: str | None = None


class SchemaValidator:
    """Judges by one schema; ``path``: where the request has it."""

    def __init__(self, schema: Mapping[str, Any], path: str) -> None:
        self._schema = schema
        self._path = path

    async def check(self) -> None:
        """Raises ``InvalidRequest`` for a schema that nothing can be judged by."""
        said = await self._asked(None)
        if (why := said.schema or said.fault) is not None:
            raise InvalidRequest(
                f"Invalid schema: {why}", param=self._path, code="invalid_json_schema"
            )

    async def fault(self, text: str) -> str | None:
        """What is wrong with a text, in words for who wrote it; None if nothing is."""
        said = await self._asked(text)
        return said.fault or said.schema

    async def _asked(self, text: str | None) -> _Said:
        return await _asked(schema=self._schema, text=text)


async def grammar_fault(lark: str, text: str, *, whole: bool) -> str | None:
    """What is wrong with a text, or the beginning of one, by a grammar in llguidance's Lark; None
    if nothing is."""
    return (await _asked(lark=lark, text=text, whole=whole)).fault


async def _asked(**about: Any) -> _Said:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        str(_WORKER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        async with asyncio.timeout(_SECONDS):
            said, _ = await process.communicate(msgspec.json.encode(about))
    except TimeoutError:
        return _Said(fault=_SLOW)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    try:
        return msgspec.json.decode(said, type=_Said)
    except msgspec.DecodeError:  # ended for what it took
        return _Said(fault=_SLOW)

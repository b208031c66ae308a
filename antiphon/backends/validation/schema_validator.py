"""Validate JSON against a schema, and texts against grammars that are expensive, in a separate
process with limits of time and memory. The validator supports every keyword, also those that no
grammar can enforce."""

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


class _Verdict(msgspec.Struct, frozen=True):
    fault: str | None = None
    schema: str | None = None


class SchemaValidator:
    """Validates by one schema. ``path``: where it stands in the request."""

    def __init__(self, schema: Mapping[str, Any], path: str) -> None:
        self._schema = schema
        self._path = path

    async def check(self) -> None:
        """Raise ``InvalidRequest`` if the schema cannot be used."""
        verdict = await self._validate(None)
        if (why := verdict.schema or verdict.fault) is not None:
            raise InvalidRequest(
                f"Invalid schema: {why}", param=self._path, code="invalid_json_schema"
            )

    async def fault(self, text: str) -> str | None:
        """What is wrong with a text, in words for the model that wrote it; None if it is valid."""
        verdict = await self._validate(text)
        return verdict.fault or verdict.schema

    async def _validate(self, text: str | None) -> _Verdict:
        return await _run_worker(schema=self._schema, text=text)


async def grammar_fault(lark: str, text: str, *, whole: bool) -> str | None:
    """What is wrong with a text, or None. ``lark``: a grammar in llguidance's Lark. Unless
    ``whole``, the text only has to be the beginning of a match."""
    return (await _run_worker(lark=lark, text=text, whole=whole)).fault


async def _run_worker(**request: Any) -> _Verdict:
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
            output, _ = await process.communicate(msgspec.json.encode(request))
    except TimeoutError:
        return _Verdict(fault=_SLOW)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    try:
        return msgspec.json.decode(output, type=_Verdict)
    except msgspec.DecodeError:  # killed at a limit of time or memory
        return _Verdict(fault=_SLOW)

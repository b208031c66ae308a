"""Validate texts in a separate process, the worker, which has limits of time and memory.

The worker validates JSON by a schema. It supports all keywords, also keywords that a grammar cannot
enforce. The worker also matches texts to grammars, but only if such a match is too expensive for
Antiphon's own process.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from antiphon.errors import BackendError, InvalidRequest
from antiphon.ipc.worker_process import WorkerFailed, run_worker
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.fair_threads import current_tenant

_log = structlog.get_logger(__name__)

_WORKER = Path(__file__).with_name("validator_worker.py")
#: Time limit of a validation, in seconds.
_SECONDS = 10.0
_SLOW = "it takes too long to check."


class _Verdict(msgspec.Struct, frozen=True):
    """The result of the worker process. If all fields are None, the text is valid.

    ``fault``: the fault of the text. ``schema``: the fault of the schema. ``error``: the reason why
    the worker could not validate.
    """

    fault: str | None = None
    schema: str | None = None
    error: str | None = None


class SchemaValidator:
    """Checks whether texts are valid JSON that matches a schema. Each check runs in a separate
    process, the worker. ``path``: path of the schema's field in the request. ``turns``: limits the
    processes.

    All methods raise ``BackendError`` if the worker could not run.
    """

    def __init__(self, schema: Mapping[str, object], path: str, turns: FairLimiter) -> None:
        self._schema = schema
        self._path = path
        self._turns = turns

    async def check(self) -> None:
        """Raise ``InvalidRequest`` if the schema is invalid."""
        verdict = await self._validate(None)
        if (why := verdict.schema or verdict.fault) is not None:
            raise InvalidRequest(
                f"Invalid schema: {why}", param=self._path, code="invalid_json_schema"
            )

    async def fault(self, text: str) -> str | None:
        """Return a message about the fault of a text, for the model that wrote the text. Return
        None if the text is valid."""
        verdict = await self._validate(text)
        return verdict.fault or verdict.schema

    async def _validate(self, text: str | None) -> _Verdict:
        return await _run_in_turn(self._turns, schema=self._schema, text=text)


async def match_fault_in_process(
    lark: str, text: str, turns: FairLimiter, *, whole: bool
) -> str | None:
    """Match a text to a grammar in the worker process. Return a message about the fault, or None if
    the text matches.

    ``lark``: a grammar in llguidance's dialect of Lark. ``whole``: whether the text must match the
    whole grammar. If False, it is enough that the text is the beginning of a match. ``turns``:
    limits the processes. Raises ``BackendError`` if the worker process could not run.
    """
    return (await _run_in_turn(turns, lark=lark, text=text, whole=whole)).fault


async def _run_in_turn(turns: FairLimiter, **request: object) -> _Verdict:
    """Run the worker process when it is the tenant's turn. See ``_run_worker``."""
    async with turns.slot(current_tenant.get()):
        return await _run_worker(**request)


async def _run_worker(**request: object) -> _Verdict:
    """Run the worker process for one request. Every wait has a time limit.

    ``request``: the fields of the worker's request, such as ``schema`` and ``text``. Raises
    ``BackendError`` if the worker could not run.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            output = await run_worker(_WORKER, content=msgspec.json.encode(request))
        verdict = msgspec.json.decode(output, type=_Verdict)
    except TimeoutError:
        return _Verdict(fault=_SLOW)
    except WorkerFailed as failure:
        if failure.status < 0:  # killed at a resource limit
            return _Verdict(fault=_SLOW)
        raise _start_failure(str(failure)) from None
    except (OSError, msgspec.DecodeError) as error:
        raise _start_failure(str(error)) from None
    if verdict.error is not None:
        raise _start_failure(verdict.error)
    return verdict


def _start_failure(reason: str) -> BackendError:
    """Log why the worker could not run, and return an error for the client. The error contains no
    details about this machine."""
    _log.error("validator process could not run", executable=sys.executable, reason=reason)
    return BackendError(
        "The output cannot be validated: the server's validator process could not run.",
        permanent=True,
    )

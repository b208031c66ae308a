"""Logging: one logger, as JSON lines for machines or as text for people. It is made here and
passed to whoever logs; only ``adopt`` touches what is global.

Secrets are struck out of every line, wherever they come from. Tracebacks show no local variables:
these hold what users wrote.
"""

from __future__ import annotations

import logging
import re
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import msgspec
import structlog
from structlog.typing import Processor

__all__ = ["Style", "adopt", "open_log", "redact"]

Style = Literal["json", "human"]

STRUCK = "[redacted]"

#: Names whose values never reach a log.
_SECRET = frozenset(
    {
        "api-key",
        "api_key",
        "access_token",
        "apikey",
        "authorization",
        "cookie",
        "encrypted_content",
        "openai-api-key",
        "password",
        "proxy-authorization",
        "secret",
        "set-cookie",
        "token",
        "x-api-key",
    }
)
#: Secrets inside texts: bearer headers, keys in the common form, passwords in URLs (which are told
#: from ports by the @ behind them).
_IN_TEXT = re.compile(r"(?i)(bearer\s+|\bsk-|://[^\s/:@]*:(?=[^\s'\"\\,;@]+@))[^\s'\"\\,;@]+")
_TRACES = ("bearer", "sk-", "://")
#: What other values are in.
_HOLDING = (dict, list, tuple)


def redact(line: str) -> str:
    """The line without what looks like a secret in it."""
    low = line.lower()
    if any(trace in low for trace in _TRACES):
        return _IN_TEXT.sub(rf"\1{STRUCK}", line)
    return line


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: STRUCK
            if str(name).lower() in _SECRET
            else (_without_secrets(inner) if isinstance(inner, _HOLDING) else inner)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_without_secrets(inner) for inner in value]
    return value


def _strike_names(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    safe: MutableMapping[str, Any] = _without_secrets(event)
    return safe


def _strike_texts(logger: Any, method: str, line: Any) -> str:
    return redact(line)


def _json(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()


def open_log(stream: TextIO, *, style: Style = "json", level: str = "info") -> Any:
    """A structlog logger that writes lines to ``stream``. ``level``: debug, info, warning, error.

    Context variables bound with structlog (``request_id``) are on every line.
    """
    last: Processor = structlog.processors.JSONRenderer(serializer=_json)
    if style == "human":
        last = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    return structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _strike_names,
            last,
            _strike_texts,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )


class _Adopted(logging.Handler):
    def __init__(self, log: Any) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        exception = record.exc_info if record.exc_info and record.exc_info[0] else None
        self._log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=exception)


def adopt(log: Any, *, level: str = "warning") -> None:
    """Send into ``log`` what goes to structlog's default loggers, and from ``level`` on what
    libraries log through the standard library. Once a process, by whoever owns it."""
    root = logging.getLogger()
    root.handlers[:] = [_Adopted(log)]
    root.setLevel(level.upper())

    def relay(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        getattr(log, method)(event.pop("event", ""), **event)
        raise structlog.DropEvent

    structlog.configure(processors=[relay], cache_logger_on_first_use=False)

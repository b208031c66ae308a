"""Logging: one structlog logger that writes JSON lines or readable text.

The logger is created in this module and passed to its users. Only ``capture_libraries`` changes
global state. Secrets are redacted in every line. Tracebacks omit local variables, because these can
hold user data.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from typing import Any, Literal, TextIO

import msgspec
import structlog
from structlog.contextvars import merge_contextvars
from structlog.processors import StackInfoRenderer, TimeStamper, add_log_level, format_exc_info

from antiphon.support.log import Log

__all__ = ["HEADER_LOGGERS", "LogLevel", "Style", "capture_libraries", "open_log", "redact"]

Style = Literal["json", "human"]

REDACTED = "[redacted]"

#: Methods of loggers, and how severe their lines are.
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
}

#: Names whose values are never logged.
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
#: Patterns for secrets inside texts: bearer headers and ``sk-`` keys; the user of a URL, which
#: precedes the password; the longest text that can be a secret. Clients choose the texts, so all
#: patterns take linear time.
_IN_TEXT = re.compile(r"(?i)(bearer\s+|\bsk-)[^\s'\"\\,;@]+")
_URL_USER = re.compile(r"://[^\s/:@]*(?=:)")
_SECRET_RUN = re.compile(r"[^\s'\"\\,;@]*")
#: Containers of other values.
_CONTAINERS = (dict, list, tuple)
_PLAIN = frozenset({bool, float, int, str, type(None)})
#: Values that structlog's console renderer lays out in columns or paragraphs of their own.
_LAID_OUT = frozenset({"exception", "logger", "logger_name", "stack"})
#: Characters for which the console renderer quotes a text.
_QUOTED = re.compile(r"[ \t=\r\n\"']")

#: Loggers of OpenTelemetry whose warnings are about trace headers, for example about a
#: ``traceparent`` that is too long. Clients send these headers, so clients could fill the log.
HEADER_LOGGERS = ("opentelemetry.trace.propagation.tracecontext", "opentelemetry.trace.span")

_Event = MutableMapping[str, Any]
_Renderer = Callable[[Any, str, _Event], str]


def redact(line: str) -> str:
    """Replace every text in the line that looks like a secret."""
    low = line.lower()
    if "bearer" in low or "sk-" in low or "://" in low:
        return _IN_TEXT.sub(rf"\1{REDACTED}", _redact_passwords(line))
    return line


def _redact_passwords(line: str) -> str:
    """Replace the passwords in URLs. In ``user:password@host``, the ``@`` shows that the text after
    the colon is a password and not a port."""
    parts: list[str] = []
    done = run_end = 0
    for user in _URL_USER.finditer(line):
        start = user.end() + 1
        if start <= done:
            continue  # inside the last password
        if start > run_end and (run := _SECRET_RUN.match(line, start)) is not None:
            run_end = run.end()
        if start < run_end and line.startswith("@", run_end):
            parts += (line[done:start], REDACTED)
            done = run_end
    return "".join((*parts, line[done:]))


@lru_cache(1024)
def _is_secret(name: str) -> bool:
    return name.lower() in _SECRET


@lru_cache(1024)
def _has_secret(names: tuple[str, ...]) -> bool:
    return any(map(_is_secret, names))


def _redact_event(event: _Event) -> _Event:
    """Return a log event in which secrets are replaced.

    Most events contain only texts, numbers, booleans and None, and none of their names looks like
    the name of a secret. Such an event is returned unchanged. Every other event is searched for
    secrets, including the dicts, lists and tuples in it.
    """
    if _has_secret(tuple(event)) or not _PLAIN.issuperset(map(type, event.values())):
        redacted: _Event = _redact_values(event)
        return redacted
    return event


def _redact_values(value: object) -> Any:
    if isinstance(value, dict):
        return {
            name: REDACTED
            if _is_secret(str(name))
            else (_redact_values(inner) if isinstance(inner, _CONTAINERS) else inner)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_redact_values(inner) for inner in value]
    return value


def _line_processor(render: _Renderer) -> _Renderer:
    """Return the only structlog processor of a logger. It adds the values that every line has,
    redacts secrets and renders the line.

    It is one function, because every request writes a line, and a chain of separate processors
    would take twice as long.
    """
    timestamp, stack_info = TimeStamper(fmt="iso", utc=True), StackInfoRenderer()

    def process(logger: object, method: str, event: _Event) -> str:
        event = merge_contextvars(logger, method, event)
        event = add_log_level(logger, method, event)
        event = timestamp(logger, method, event)
        if "stack_info" in event:
            event = stack_info(logger, method, event)
        if "exc_info" in event:
            event = format_exc_info(logger, method, event)
        return redact(render(logger, method, _redact_event(event)))

    return process


def _render_json(logger: object, method: str, event: _Event) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()


def _human_renderer(*, colors: bool) -> _Renderer:
    """Return a renderer that formats log events like structlog's console renderer. If ``colors`` is
    False, events with neither a traceback nor a logger name take a faster path, which gives the
    same output."""
    console = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback
    )

    def render(logger: object, method: str, event: _Event) -> str:
        if colors or not _LAID_OUT.isdisjoint(event):
            return console(logger, method, event)
        head = f"{event.pop('timestamp')} [{event.pop('level'):9}] {event.pop('event')!s:30}"
        pairs = [f"{name}={_value(event[name])}" for name in sorted(event)]
        return " ".join((head, *pairs)).rstrip(" ")

    return render


def _value(value: object) -> str:
    if isinstance(value, str) and not _QUOTED.search(value):
        return value
    return repr(value)


class LogLevel:
    """The minimum level of the lines that are written: debug, info, warning or error. The level can
    be changed later."""

    def __init__(self, name: str) -> None:
        self.set(name)

    def set(self, name: str) -> None:
        """Set the minimum level of the lines that are written."""
        self._number = _LEVELS[name]

    def lower(self, name: str) -> None:
        """Set the minimum level to ``name``, unless the current minimum is already lower."""
        self._number = min(self._number, _LEVELS[name])

    def filter(self, logger: object, method: str, event: _Event) -> _Event:
        """Raise structlog's ``DropEvent`` for an event below the minimum level, so that it is not
        logged. This method is a structlog processor."""
        if _LEVELS.get(method, self._number) < self._number:
            raise structlog.DropEvent
        return event


def open_log(stream: TextIO, *, style: Style = "json", level: str | LogLevel = "info") -> Log:
    """Return a structlog logger that writes lines to ``stream``. ``level``: debug, info, warning,
    error or a ``LogLevel``. A ``LogLevel`` can be changed later, but each line below the level then
    costs a little more time than with a fixed level.

    Values that were bound as structlog context variables, such as ``request_id``, are in every
    line.
    """
    render = _render_json if style == "json" else _human_renderer(colors=stream.isatty())
    lowest = level if isinstance(level, str) else "debug"
    filters = [] if isinstance(level, str) else [level.filter]
    log: Log = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[*filters, _line_processor(render)],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
    ).bind()  # the logger itself, which is faster than the proxy that makes it
    return log


class _LogBridge(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        exception = record.exc_info if record.exc_info and record.exc_info[0] else None
        self._log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=exception)


def capture_libraries(log: Log, *, level: str = "warning") -> None:
    """Write the lines of other packages to ``log``: lines of structlog's default loggers, and of
    the standard library's ``logging``.

    ``level``: minimum level of lines from the standard library. Call this once per process.
    """
    root = logging.getLogger()
    root.handlers[:] = [_LogBridge(log)]
    root.setLevel(level.upper())
    for name in HEADER_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)

    def relay(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        getattr(log, method)(event.pop("event", ""), **event)
        raise structlog.DropEvent

    structlog.configure(processors=[relay], cache_logger_on_first_use=False)

"""Logging: one logger that writes JSON lines or readable text.

The logger is created in this module and passed to its users. Only ``capture_libraries`` changes
global state. Secrets are redacted in every line. Tracebacks omit local variables, because these can
hold user data.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal, TextIO

import msgspec
import structlog
from structlog.processors import StackInfoRenderer, format_exc_info

from antiphon.support.log import Log

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
#: Levels of the module ``logging``, and how lines name them.
_NAMES = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}

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

#: Loggers whose warnings are about what clients send, so that clients could fill the log: trace
#: headers that are too long, and forms that are malformed.
CLIENT_LOGGERS = (
    "opentelemetry.trace.propagation.tracecontext",
    "opentelemetry.trace.span",
    "python_multipart",
)

#: Prefixes of loggers of libraries that read what servers of tenants send: the MCP SDK, and
#: aiohttp, which fetches files and delivers webhooks. Their lines are about what such a server has
#: sent, also those with a traceback, so it could fill the log. What fails because of it says so.
_PEER_LOGGERS = ("mcp.", "client.", "aiohttp.client.", "aiohttp.internal.")
_MAX_PEER_TEXT = 200

#: The event of a line about a request, and the values that such a line has.
_REQUEST = "request"
_REQUEST_FIELDS = frozenset({"method", "path", "status", "ms"})

_Event = MutableMapping[str, Any]
_Renderer = Callable[[_Event], str]
_STACK_INFO = StackInfoRenderer()

#: Values of every line that is written in a context, such as the id of the request.
line_values: ContextVar[Mapping[str, object]] = ContextVar(
    "line_values", default=MappingProxyType({})
)


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


def _render_json(event: _Event) -> str:
    return msgspec.json.encode(_redact_event(event), enc_hook=repr).decode()


def _human_renderer(*, colors: bool) -> _Renderer:
    """Return a renderer that formats log events like structlog's console renderer. If ``colors`` is
    False, events with neither a traceback nor a logger name take a faster path, which gives the
    same output."""
    console = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback
    )

    def render(event: _Event) -> str:
        if event["event"] == _REQUEST and _REQUEST_FIELDS <= event.keys():
            return _render_request(event)
        event = _redact_event(event)
        if colors or not _LAID_OUT.isdisjoint(event):
            return console(None, "", event)
        head = f"{event.pop('timestamp')} [{event.pop('level'):9}] {event.pop('event')!s:30}"
        names = sorted(event)
        texts = [value if isinstance(value := event[name], str) else repr(value) for name in names]
        if _QUOTED.search("".join(texts)):  # one search, because few lines have such a text
            texts = [_value(event[name]) for name in names]
        pairs = [f"{name}={text}" for name, text in zip(names, texts, strict=True)]
        return " ".join((head, *pairs)).rstrip(" ")

    return render


def _render_request(event: _Event) -> str:
    """Return the line of a request: time (UTC), status, method, path, model, tokens and duration.
    The other values, such as the request id, are only in JSON."""
    line = f"{event['timestamp'][11:19]} {event['status']} {event['method']} "
    line += _value(event["path"])
    if "model" in event:
        line += f" {_value(event['model'])}"
    if "input_tokens" in event:
        line += f" {event['input_tokens']}+{event['output_tokens']} tokens"
    return f"{line} {round(event['ms'])} ms"


def _value(value: object) -> str:
    is_plain = isinstance(value, str) and value.isprintable() and not _QUOTED.search(value)
    return str(value) if is_plain else repr(value)


def _timestamp() -> str:
    """Return the present time in UTC, with microseconds."""
    second, microsecond = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{_whole_second(second)}.{microsecond:06d}Z"


@lru_cache(2)
def _whole_second(second: int) -> str:
    """Return a Unix time in UTC. The lines of a second share it."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


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

    def hides(self, method: str) -> bool:
        """Return whether lines of this method of a logger are not written."""
        return _LEVELS[method] < self._number


class _LineLog:
    """A logger that writes one line for each event. It adds the values that every line has, redacts
    secrets and renders the line, in one step: every request writes a line, and a chain of
    structlog's processors would take several times as long. ``fields``: values of every line."""

    def __init__(self, stream: TextIO, level: LogLevel, render: _Renderer, fields: _Event) -> None:
        self._fields = fields
        self._stream = stream
        self._level = level
        self._render = render
        self._lock = Lock()

    def debug(self, event: str, **fields: object) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write("error", event, fields)

    def exception(self, event: str, **fields: object) -> None:
        self._write("error", event, {"exc_info": True, **fields})

    def log(self, level: int, event: str, **fields: object) -> None:
        self._write(_NAMES.get(level, "error"), event, fields)

    def _write(self, method: str, event: str, fields: _Event) -> None:
        if self._level.hides(method):
            return
        fields = {
            "event": event,
            **self._fields,
            **line_values.get(),
            **fields,
            "level": method,
            "timestamp": _timestamp(),
        }
        if "stack_info" in fields:
            fields = _STACK_INFO(None, method, fields)
        if "exc_info" in fields:
            fields = format_exc_info(None, method, fields)
        line = redact(self._render(fields))
        with self._lock:
            self._stream.write(f"{line}\n")
            self._stream.flush()


def open_log(
    stream: TextIO, *, style: Style = "json", level: str | LogLevel = "info", **fields: object
) -> Log:
    """Return a logger that writes lines to ``stream``. ``level``: debug, info, warning, error or a
    ``LogLevel``, which can be changed later. ``fields``: values that every line has.

    The values in ``line_values``, such as ``request_id``, are in every line, too.
    """
    render = _render_json if style == "json" else _human_renderer(colors=stream.isatty())
    minimum = LogLevel(level) if isinstance(level, str) else level
    return _LineLog(stream, minimum, render, fields)


class _LogBridge(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        exception = record.exc_info if record.exc_info and record.exc_info[0] else None
        if f"{record.name}.".startswith(_PEER_LOGGERS):
            error = exception[0].__name__ if exception and exception[0] else ""
            reason = record.getMessage().partition("\n")[0][:_MAX_PEER_TEXT]
            what = "a library cannot use what a server sent"
            self._log.debug(what, logger=record.name, reason=reason, error=error)
            return
        self._log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=exception)


def capture_libraries(log: Log) -> None:
    """Write the lines of other packages to ``log``: lines of structlog's default loggers, and
    warnings and errors of the standard library's ``logging``. Those about what servers of tenants
    send are lines of the level debug, without tracebacks. Call this once per process."""
    root = logging.getLogger()
    root.handlers[:] = [_LogBridge(log)]
    root.setLevel(logging.WARNING)
    for name in CLIENT_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)

    def relay(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        log.log(_LEVELS[method], event.pop("event", ""), **event)
        raise structlog.DropEvent

    structlog.configure(processors=[relay], cache_logger_on_first_use=False)

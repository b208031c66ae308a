"""What the package needs of a logger, so that embedders may pass another one than structlog's."""

from __future__ import annotations

from typing import Protocol


class Log(Protocol):
    """A structured logger, such as structlog's. ``event``: the message. ``fields``: the values that
    belong to it."""

    def debug(self, event: str, **fields: object) -> object:
        """Log a detail that helps in the search for a fault."""

    def info(self, event: str, **fields: object) -> object:
        """Log what has happened in normal operation."""

    def warning(self, event: str, **fields: object) -> object:
        """Log what an operator should know."""

    def error(self, event: str, **fields: object) -> object:
        """Log a failure."""

    def exception(self, event: str, **fields: object) -> object:
        """Log a failure with the traceback of the exception that is being handled."""

    def log(self, level: int, event: str, **fields: object) -> object:
        """Log with a level of the module ``logging``."""

"""Wrong clocks of servers, by libfaketime. Their monotonic clocks stay right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def faketime_library() -> Path | None:
    """Return the path of libfaketime. Returns None if it is not installed (Debian: ``apt install
    faketime``)."""
    found = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return next(iter(sorted(found)), None)


class ServerClock:
    """The clock of one server. ``file`` holds its deviation."""

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        self.move(0)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of a process with this clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def move(self, seconds: int) -> None:
        """Let the clock be so many seconds ahead, or behind if negative. Replaced in one step: the
        process reads the file with every look at its clock."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)

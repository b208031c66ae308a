"""``antiphon usage``: print the usage of a running server, as a table or as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

from rich.console import Console
from rich.table import Table

from antiphon.config.load import LoadedSettings

from .client import Json, Server, find_server

#: Name of a group on the command line → name in the API.
GROUPS: Mapping[str, str] = {"key": "api_key_id", "model": "model", "tenant": "project_id"}

_WIDTHS: Mapping[str, tuple[int, int, str]] = {
    "1h": (3600, 168, "%Y-%m-%d %H:%M"),
    "1d": (86_400, 31, "%Y-%m-%d"),
}
#: Minimum width of the table in characters. A narrower terminal wraps the lines; the table keeps
#: all columns.
_MIN_WIDTH = 140
#: Heading → field of a result.
COLUMNS: Mapping[str, str] = {
    "requests": "num_model_requests",
    "failed": "num_failed_requests",
    "input": "input_tokens",
    "cached": "input_cached_tokens",
    "output": "output_tokens",
    "reasoning": "output_reasoning_tokens",
    "tool_calls": "num_tool_calls",
    "mean_ms": "latency_ms",
}


def run(
    loaded: LoadedSettings,
    *,
    by_hour: bool,
    periods: int,
    groups: Sequence[str],
    as_csv: bool,
    now: int,
) -> None:
    """Print the usage of the last ``periods`` hours or days, in UTC. ``groups``: fields by which
    the usage is grouped, such as ``tenant``. The table has one row for each period and each
    combination of values of these fields. Within a period, the row with the most tokens comes
    first. ``now``: the current time in Unix seconds. Raises ``SetupError``."""
    width = "1h" if by_hour else "1d"
    heading = ["hour" if by_hour else "day", *groups, *COLUMNS]
    rows = list(_rows(find_server(loaded), width, periods, groups, now))
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([heading, *rows])
        return
    table = Table(box=None)
    for at, name in enumerate(heading):
        is_number = at > len(groups)
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else cell for cell in row))
    width_of_screen = max(Console().width, _MIN_WIDTH)
    Console(highlight=False, markup=False, width=width_of_screen).print(table)


def _rows(
    server: Server, width: str, periods: int, groups: Sequence[str], now: int
) -> Iterator[list[str | int]]:
    seconds, limit, form = _WIDTHS[width]
    query: list[tuple[str, object]] = [
        ("start_time", max(0, now - now % seconds - (periods - 1) * seconds)),
        ("bucket_width", width),
        ("limit", limit),
        *(("group_by[]", GROUPS[group]) for group in groups),
    ]
    page = None
    while True:
        more: list[tuple[str, object]] = [("page", page)] if page else []
        found = server.get(f"/v1/organization/usage/completions?{urlencode(query + more)}")
        for bucket in found["data"]:
            begin = datetime.fromtimestamp(bucket["start_time"], UTC).strftime(form)
            for result in sorted(bucket["results"], key=_tokens, reverse=True):
                names = [str(result[GROUPS[group]] or "-") for group in groups]
                yield [begin, *names, *_numbers(result)]
        page = found["next_page"]
        if page is None:
            return


def _tokens(result: Json) -> int:
    return int(result["input_tokens"] + result["output_tokens"])


def _numbers(result: Json) -> list[int]:
    numbers = {name: int(result[field]) for name, field in COLUMNS.items()}
    numbers["mean_ms"] = round(numbers["mean_ms"] / max(1, numbers["requests"]))
    return list(numbers.values())

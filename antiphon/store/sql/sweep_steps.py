"""The steps of a sweep that delete what has expired besides responses."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from antiphon.store.base import Retention
from antiphon.store.usage import usage_cutoffs

#: Largest number of rows that one write changes: ordinary rows, files, which are large, and small
#: rows, such as those of the usage log.
ROWS, _FILES, SMALL_ROWS = 500, 10, 5000


class SweepStep(Struct, frozen=True):
    """A query that is repeated until it changes no row. ``rows``: its last argument, the largest
    number of rows that it changes at a time."""

    query: str
    arguments: tuple[int, ...]
    rows: int = ROWS


def sweep_steps(retention: Retention, now: int) -> Iterator[SweepStep]:
    """Yield the steps. ``now``: the time of the sweep, in Unix seconds."""

    def before(age_s: float) -> int:
        return int(now - age_s)

    yield SweepStep("expire_files", (now,), _FILES)
    yield SweepStep("expire_vector_files", (now,), _FILES)
    yield SweepStep("set_end_times", (max(now, 1),))
    if retention.max_age_s is not None:
        yield SweepStep("expire_approvals", (before(retention.max_age_s),))
    if retention.max_log_age_s is not None:
        yield SweepStep("mark_runs_deleted", (before(retention.max_log_age_s), max(now, 1)))
    for rollup, cutoff in usage_cutoffs(now):
        if rollup.width == 0:
            yield SweepStep("roll_up_usage_rows", (rollup.to, cutoff), SMALL_ROWS)
        else:
            row = (rollup.to, cutoff, rollup.width)
            yield SweepStep("roll_up_usage_sums", row, SMALL_ROWS)
    if retention.max_audit_age_s is not None:
        yield SweepStep("expire_audit", (before(retention.max_audit_age_s),))
    if retention.max_usage_age_s is not None:
        yield SweepStep("expire_usage", (before(retention.max_usage_age_s),))

"""The steps in which a database deletes what has expired besides responses, and all data of a
tenant. Each step changes few rows, so other writes do not wait long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from antiphon.store.base import Retention
from antiphon.store.usage import usage_cutoffs

#: Largest number of rows that one write changes: ordinary rows, large rows (such as files), and
#: small rows, such as those of the usage log.
ROWS, _LARGE_ROWS, SMALL_ROWS = 500, 10, 5000


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

    yield SweepStep("expire_files", (now,), _LARGE_ROWS)
    yield SweepStep("expire_vector_files", (now,), _LARGE_ROWS)
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


#: The steps that delete a tenant, in the order in which they run: query → number of rows that one
#: execution deletes. Each query is repeated until no rows are left. A row that belongs to another
#: row, such as an item to a conversation, is deleted first.
TENANT_STEPS: Mapping[str, int] = {
    "drop_tenant_jobs": ROWS,
    "drop_tenant_runs": ROWS,
    "drop_tenant_responses": ROWS,
    "drop_tenant_items": ROWS,
    "drop_tenant_conversations": ROWS,
    "drop_tenant_locks": ROWS,
    "drop_tenant_webhooks": ROWS,
    "drop_tenant_reservations": ROWS,
    "drop_tenant_vector_files": _LARGE_ROWS,
    "drop_tenant_vector_stores": ROWS,
    "drop_tenant_files": _LARGE_ROWS,
    "drop_tenant_journal": ROWS,
    "drop_tenant_values": _LARGE_ROWS,
    "drop_tenant_usage_rows": ROWS,
    "drop_tenant_usage_sums": ROWS,
}

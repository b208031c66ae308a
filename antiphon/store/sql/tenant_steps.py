"""The steps in which a database deletes all data of a tenant, in the order in which they run. Each
step changes few rows, so other writes do not wait long."""

from __future__ import annotations

from collections.abc import Mapping

#: Largest number of rows that one step deletes: ordinary rows, and large rows.
_ROWS, _LARGE_ROWS = 500, 10

#: Query → number of rows that one execution deletes. Each query is repeated until no rows are left.
#: A row that belongs to another row, such as an item to a conversation, is deleted first.
TENANT_STEPS: Mapping[str, int] = {
    "drop_tenant_jobs": _ROWS,
    "drop_tenant_runs": _ROWS,
    "drop_tenant_responses": _ROWS,
    "drop_tenant_items": _ROWS,
    "drop_tenant_conversations": _ROWS,
    "drop_tenant_locks": _ROWS,
    "drop_tenant_reservations": _ROWS,
    "drop_tenant_vector_files": _LARGE_ROWS,
    "drop_tenant_vector_stores": _ROWS,
    "drop_tenant_files": _LARGE_ROWS,
    "drop_tenant_journal": _ROWS,
    "drop_tenant_values": _LARGE_ROWS,
    "drop_tenant_usage_rows": _ROWS,
    "drop_tenant_usage_sums": _ROWS,
}

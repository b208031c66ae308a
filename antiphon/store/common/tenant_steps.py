"""The order in which a database deletes what it stores of a tenant: in steps that change few rows,
so that other writes do not wait for them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["TENANT_STEPS"]

#: Rows that one step deletes at most, and large ones.
_ROWS, _LARGE_ROWS = 500, 10

#: Query → rows that one execution deletes. Each is repeated until none are left. Parts come before
#: the whole.
TENANT_STEPS: Mapping[str, int] = {
    "drop_tenant_jobs": _ROWS,
    "drop_tenant_runs": _ROWS,
    "drop_tenant_responses": _ROWS,
    "drop_tenant_items": _ROWS,
    "drop_tenant_conversations": _ROWS,
    "drop_tenant_holds": _ROWS,
    "drop_tenant_reservations": _ROWS,
    "drop_tenant_vector_files": _LARGE_ROWS,
    "drop_tenant_vector_stores": _ROWS,
    "drop_tenant_files": _LARGE_ROWS,
    "drop_tenant_skills": _LARGE_ROWS,
    "drop_tenant_approvals": _ROWS,
    "drop_tenant_containers": _ROWS,
    "drop_tenant_usage_rows": _ROWS,
    "drop_tenant_usage_sums": _ROWS,
}

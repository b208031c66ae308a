"""What a store writes when it saves a response."""

from __future__ import annotations

from msgspec import Struct

from antiphon.store.records import NewRun, RunEnd, StoredResponse
from antiphon.store.usage import UsageRecord


class Saving(Struct, frozen=True, kw_only=True):
    """A response to save, and what belongs to it.

    - ``conversation``: the conversation to which the input and the output are appended.
    - ``expires_at``: Unix seconds at which the response is deleted.
    - ``listed``: whether other requests can refer to the items of the response by id.
    - ``usage``: a record to add to the usage log.
    """

    tenant: str
    stored: StoredResponse
    conversation: str | None = None
    expires_at: int | None = None
    listed: bool = True
    usage: UsageRecord | None = None

    @classmethod
    def of_new_run(cls, run: NewRun) -> Saving:
        """Return how the response of a new run is saved. Its items are listed when it ends."""
        return cls(tenant=run.job.tenant, stored=run.stored, listed=False)

    @classmethod
    def of_run_end(cls, tenant: str, end: RunEnd) -> Saving:
        """Return how the final response of a run is saved."""
        return cls(
            tenant=tenant,
            stored=end.stored,
            conversation=end.conversation,
            expires_at=end.expires_at,
            listed=end.stored.response.store,
            usage=end.usage,
        )

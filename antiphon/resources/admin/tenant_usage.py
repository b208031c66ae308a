"""Read how much of each quota a tenant has used."""

from __future__ import annotations

from antiphon.limits.quotas import TenantQuotas
from antiphon.resources.containers import Containers
from antiphon.resources.file_storage.uploads import ChunkedUploads
from antiphon.store.base import Store
from antiphon.wire.admin.usage import BackgroundUsage, QuotaUsage, StorageUsage


class TenantUsageReader:
    """Reads how much of each quota a tenant has used. ``max_runs``: maximum number of background
    runs of one tenant that this server executes at a time. None means no limit."""

    def __init__(
        self,
        store: Store,
        quotas: TenantQuotas,
        *,
        uploads: ChunkedUploads,
        containers: Containers,
        max_runs: int | None = None,
    ) -> None:
        self._store = store
        self._quotas = quotas
        self._uploads = uploads
        self._containers = containers
        self._max_runs = max_runs

    async def read(self, tenant: str) -> tuple[StorageUsage, BackgroundUsage]:
        """Return a tenant's storage usage, and the numbers of its queued and running background
        runs."""
        used, limits = await self._store.usage(tenant), self._quotas.for_tenant(tenant)
        uploads_bytes = await self._uploads.pending_bytes(tenant)
        skills_bytes = await self._store.skills.total_bytes(tenant)
        storage = StorageUsage(
            responses=QuotaUsage(used.responses, limits.max_responses),
            responses_bytes=QuotaUsage(used.responses_bytes, limits.max_responses_bytes),
            files=QuotaUsage(used.files, limits.max_files),
            files_bytes=QuotaUsage(used.files_bytes, limits.max_files_bytes),
            uploads_bytes=QuotaUsage(uploads_bytes, limits.max_files_bytes),
            skills_bytes=QuotaUsage(skills_bytes, limits.max_files_bytes),
            vector_stores=QuotaUsage(used.vector_stores, limits.max_vector_stores),
            containers=await self._containers.usage(tenant),
        )
        runs = BackgroundUsage(
            queued=used.queued_runs, in_progress=used.running_runs, limit=self._max_runs
        )
        return storage, runs

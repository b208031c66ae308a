"""The usage of a tenant's quotas: an extension of the API."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class QuotaUsage(Struct, frozen=True):
    """How much of a quota is used. ``limit`` is null if there is no quota."""

    used: int
    limit: int | None = None


class BackgroundUsage(Struct, frozen=True, kw_only=True):
    """The number of the tenant's background runs on all servers. ``limit``: the maximum number of
    runs of one tenant that one server executes at a time. It is null if there is no limit."""

    queued: int
    in_progress: int
    limit: int | None = None


class RequestUsage(Struct, frozen=True, kw_only=True):
    """The tenant's requests that this server process is handling now, and those that wait in its
    queue. ``limit``: the maximum number of requests of one tenant that the process handles at a
    time. It is null if there is no limit."""

    in_progress: int
    queued: int
    limit: int | None = None


class StorageUsage(Struct, frozen=True, kw_only=True):
    """How much of each storage quota the tenant uses."""

    responses: QuotaUsage
    responses_bytes: QuotaUsage
    files: QuotaUsage
    files_bytes: QuotaUsage
    uploads_bytes: QuotaUsage
    skills_bytes: QuotaUsage
    vector_stores: QuotaUsage
    containers: QuotaUsage


class UsageReport(Struct, frozen=True, kw_only=True):
    """The answer of ``GET /antiphon/usage``."""

    object: Literal["antiphon.usage"] = "antiphon.usage"
    tenant: str
    storage: StorageUsage
    background_runs: BackgroundUsage
    requests: RequestUsage

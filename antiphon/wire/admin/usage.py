"""What a tenant uses of its quotas: an extension of the API."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["BackgroundUsage", "QuotaUsage", "RequestUsage", "StorageUsage", "UsageReport"]


class QuotaUsage(Struct, frozen=True):
    """How much of a quota is used; ``limit`` is null if there is none."""

    used: int
    limit: int | None = None


class BackgroundUsage(Struct, frozen=True, kw_only=True):
    """Background runs on all servers, and how many of them one server executes at a time; null: as
    many as it can."""

    queued: int
    in_progress: int
    limit: int | None = None


class RequestUsage(Struct, frozen=True, kw_only=True):
    """Requests to this server process, and how many of them it processes at a time; null: as many
    as it can."""

    in_progress: int
    queued: int
    limit: int | None = None


class StorageUsage(Struct, frozen=True, kw_only=True):
    """What is stored, and the quotas. Containers are those of this server process."""

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

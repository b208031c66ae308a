"""Quotas: how much of each kind of object the tenants of a server may store."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from .refusals import object_too_large


class Quotas(Struct, frozen=True, kw_only=True):
    """The quotas of one tenant. Each field has the same name as its setting; None means no limit.

    ``max_responses`` counts the stored responses and the responses in progress that will be stored,
    but no deleted responses. ``max_responses_bytes`` also counts the data of deleted responses, as
    long as later responses need it. ``max_files_bytes`` applies separately to files, to pending
    uploads and to skills. ``max_containers`` counts the active containers of this process.
    """

    max_responses: int | None = None
    max_responses_bytes: int | None = None
    max_files: int | None = None
    max_files_bytes: int | None = None
    max_vector_stores: int | None = None
    max_containers: int | None = None

    @property
    def limits_responses(self) -> bool:
        """Whether the number of stored responses or their size is limited."""
        return self.max_responses is not None or self.max_responses_bytes is not None


class TenantQuotas:
    """The quotas of all tenants. ``tenants``: tenant → its quotas. ``default``: the quotas of all
    other tenants. When settings are reloaded, ``update`` replaces the quotas."""

    def __init__(
        self, default: Quotas | None = None, tenants: Mapping[str, Quotas] | None = None
    ) -> None:
        self.default = default or Quotas()
        self.tenants = tenants or {}

    def update(self, other: TenantQuotas) -> None:
        """Replace the quotas with the quotas of ``other``."""
        self.default, self.tenants = other.default, other.tenants

    def for_tenant(self, tenant: str) -> Quotas:
        """Return the quotas of a tenant."""
        return self.tenants.get(tenant, self.default)


#: Quotas that limit no tenant.
NO_QUOTAS = TenantQuotas()


def check_size(size: int, limit: int | None, *, param: str) -> None:
    """Raise ``TooLarge`` if a single object is larger than the tenant's quota for all objects
    together. ``size``: the size of the object in bytes. ``limit``: the quota in bytes; None means
    no quota. ``param``: the request field that contains the object, for the error."""
    if limit is not None and size > limit:
        raise object_too_large(size, limit, param=param)

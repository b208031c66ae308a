"""Settings of one tenant."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from .options import declare

__all__ = ["Tenant"]

_Limit = Annotated[int, Meta(ge=0)] | None


class Tenant(Struct, frozen=True, kw_only=True):
    """Quotas of a tenant: ``[tenants.NAME]``.

    They replace the settings of the same names for all keys of the tenant. 0 means no limit.
    """

    max_responses: Annotated[
        _Limit, declare("Maximum number of stored responses. Unset: the global one.")
    ] = None
    max_responses_bytes: Annotated[
        _Limit, declare("Size of stored responses in bytes. Unset: the global one.")
    ] = None
    max_files: Annotated[_Limit, declare("Maximum number of files. Unset: the global one.")] = None
    max_files_bytes: Annotated[
        _Limit, declare("Maximum total size of files in bytes. Unset: the global one.")
    ] = None
    max_vector_stores: Annotated[
        _Limit, declare("Maximum number of vector stores. Unset: the global one.")
    ] = None
    max_containers: Annotated[
        _Limit, declare("Maximum number of active containers. Unset: the global one.")
    ] = None

"""The quota of vector stores."""

from __future__ import annotations

import pytest

from antiphon.errors import QuotaExceeded
from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.resources.file_storage.files import Files
from antiphon.resources.vector_search.vector_stores import VectorStores
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.parsing.vector_stores import CreateVectorStore


async def test_quota_of_vector_stores_counts_each_tenant_alone() -> None:
    store, numbers = MemoryStore(), iter(range(99))

    def ids(prefix: str) -> str:
        return f"{prefix}_{next(numbers)}"

    files = Files(store, clock=lambda: 0.0, ids=ids)
    stores = VectorStores(
        store,
        files,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        model=None,
        rerankers=None,  # type: ignore[arg-type]
        clock=lambda: 0.0,
        ids=ids,
        quotas=TenantQuotas(Quotas(max_vector_stores=2)),
    )
    first = await stores.create("a", CreateVectorStore())
    await stores.create("a", CreateVectorStore())
    with pytest.raises(QuotaExceeded, match="max_vector_stores = 2"):
        await stores.create("a", CreateVectorStore())
    await stores.create("b", CreateVectorStore())
    await stores.delete("a", first.id)
    await stores.create("a", CreateVectorStore())

"""Reads the input of stored responses page by page."""

from __future__ import annotations

from antiphon.store.base import Store
from antiphon.support.aging_cache import AgingCache
from antiphon.wire.cursors import PagedList, PageParams
from antiphon.wire.items import Item
from antiphon.wire.pagination import Page

from .chain_cache import chain_bytes, chain_items

#: Limit of the cache, in bytes of JSON.
_MAX_BYTES = 32 * 2**20
#: Seconds that a list is kept for its next pages.
_MAX_AGE_S = 60.0


class InputLists:
    """Reads the input of stored responses page by page. An input with more than one page is cached
    for a short time, so that the next pages need not be read from the store. The cached input
    cannot become outdated, because the input of a response never changes. For each page, the store
    is asked whether the response still exists."""

    def __init__(
        self, store: Store, *, max_bytes: int = _MAX_BYTES, max_age_s: float = _MAX_AGE_S
    ) -> None:
        self._store = store
        self._cache: AgingCache[PagedList[Item]] = AgingCache(
            max_bytes=max_bytes, max_age_s=max_age_s
        )

    async def page(self, tenant: str, response_id: str, params: PageParams) -> Page[Item] | None:
        """Return one page of a response's input. The input begins with the items of the earlier
        responses that the response continues. The input items of the response's own request follow.

        Returns None if the response is unknown, deleted or expired. Raises ``InvalidRequest`` if
        the cursor is not the id of an item in the input.
        """
        key = (tenant, response_id)
        entry = self._cache.get(key)
        if entry is not None:
            if await self._store.has_response(tenant, response_id):
                return entry.value.page(params)
            self._cache.remove(key)
            return None
        chain = await self._store.load_chain(tenant, response_id)
        if chain is None:
            return None
        items = PagedList((*chain_items(chain[:-1]), *chain[-1].input))
        page = items.page(params)
        if len(page.data) < len(items):
            self._cache.add(key, items, chain_bytes(chain))
        return page

"""The operator's policy for runs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from antiphon.limits.quotas import NO_QUOTAS, TenantQuotas
from antiphon.runs.background.worker import LeaseConfig
from antiphon.runs.tool_loop.executor import ToolLimits

__all__ = ["Policy"]


class Policy(Struct, frozen=True, kw_only=True):
    """What the operator has decided about runs. Times in seconds.

    ``first_delta_wait_s``: how long the first events of a stream are held back if the request may
    still be rejected. ``timeout_s``: time limit of a run; None: no limit. ``unstored_retention_s``:
    how long a background response with ``store: false`` can be retrieved after its end.
    ``reasoning_summaries``: ``excerpt`` takes them from the reasoning, ``model`` has
    ``summary_model`` write them; None: the model that answers.
    ``share_prefix_cache``: tenants share the engines' prefix caches. ``webhooks``: send a webhook
    at the end of a background response. ``quotas``: how much each tenant may store.
    ``files_signed_url_s``: how long a URL is valid to which a download may be redirected; 0: none.
    ``file_search``: responses may search vector stores.
    ``file_search_embeddings``: the model that embeds files and queries; None: full-text search
    only. ``file_search_reranker``: the model that reranks results unless a request names another;
    None: rank fusion only. ``mcp_labels``: MCP server label → type of the built-in tool it stands
    for.
    ``save_retry_s``: how long the store is tried again when it does not take a foreground response.
    ``reraise``: raise unexpected exceptions of a run (for tests)."""

    keepalive_s: float = 15.0
    first_delta_wait_s: float = 3.0
    timeout_s: float | None = None
    unavailable_tools: str = "ignore"
    reasoning_events: str = "openai"
    undecryptable_items: str = "drop"
    reasoning_summaries: str = "excerpt"
    summary_model: str | None = None
    share_prefix_cache: bool = True
    unstored_retention_s: float = 600.0
    webhooks: bool = False
    quotas: TenantQuotas = NO_QUOTAS
    files_signed_url_s: int = 0
    file_search: bool = True
    file_search_embeddings: str | None = None
    file_search_reranker: str | None = None
    mcp_labels: Mapping[str, str] = {}
    save_retry_s: float = 5.0
    lease: LeaseConfig = LeaseConfig()
    tool_limits: ToolLimits = ToolLimits()
    reraise: bool = False

    @property
    def keepalive_events(self) -> bool:
        """Whether streams may contain ``keepalive`` events: Open Responses has none."""
        return self.reasoning_events != "open_responses"

"""The settings with which the operator controls runs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from antiphon.limits.quotas import NO_QUOTAS, TenantQuotas
from antiphon.runs.background.worker import LeaseConfig
from antiphon.runs.tool_loop.executor import ToolLimits
from antiphon.runs.usage_counter import Prices


class Policy(Struct, frozen=True, kw_only=True):
    """The operator's settings for runs. Times are in seconds.

    - ``keepalive_s``: a stream without events for this long gets a keepalive.
    - ``first_delta_wait_s``: how long the first events of a stream are held back while the request
      can still be rejected. If it is rejected during this time, the client gets an HTTP error.
    - ``timeout_s``: time limit of a run; None means no limit.
    - ``unavailable_tools``: what happens if nobody can run a tool of a request. ``ignore``: the
      model does not see the tool. ``refuse``: the request is rejected.
    - ``reasoning_events``: whether reasoning events have OpenAI's names (``openai``) or those of
      Open Responses (``open_responses``).
    - ``undecryptable_items``: what happens if items of a request cannot be decrypted. ``drop``: the
      items are left out. ``refuse``: the request is rejected.
    - ``reasoning_summaries``: with ``excerpt``, summaries are excerpts of the reasoning. With
      ``model``, ``summary_model`` writes them.
    - ``summary_model``: the name of a model. None means that the model that answers also writes
      the summaries.
    - ``share_prefix_cache``: whether tenants share the engines' prefix caches.
    - ``unstored_retention_s``: how long a background response with ``store: false`` can be
      retrieved after it has ended.
    - ``webhooks``: whether a webhook is sent to the operator's URL when a background response ends.
    - ``private_webhooks``: whether webhook endpoints of clients may have private addresses.
    - ``quotas``: how much each tenant may store.
    - ``max_tenant_background_runs``: how many background runs of a tenant may be unended; None for
      any number.
    - ``files_signed_url_s``: a file download may be redirected to a signed URL, which is valid for
      this many seconds; 0 means no redirect.
    - ``file_search``: whether responses may search vector stores.
    - ``file_search_embeddings``: the model that embeds files and queries; None means full-text
      search only.
    - ``file_search_reranker``: the model that reranks results, if the request names no other model.
      None means that rank fusion alone orders the results.
    - ``audio_input``: the model that writes down the recordings of requests to models that cannot
      hear. None means that such requests are refused.
    - ``max_audio_bytes``: maximum size of a recording.
    - ``mcp_labels``: MCP server label → type of the built-in tool that replaces it.
    - ``guards``: name of a moderator → the form in which it is asked and answers: a key of
      ``GUARDS`` of ``runs.request.guards``, or ``API`` or ``MCP`` of
      ``runs.request.moderators``.
    - ``prices``: name of a model or type of a tool → its prices. Others cost nothing.
    - ``batch_lines``: how many requests of batches a process executes at a time.
    - ``stores_nothing``: whether responses are never stored, as if each request had
      ``store: false``.
    - ``save_retry_s``: if the store fails, how long saving a foreground response is retried.
    - ``reraise``: raise unexpected exceptions of a run (for tests).
    """

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
    private_webhooks: bool = False
    quotas: TenantQuotas = NO_QUOTAS
    max_tenant_background_runs: int | None = None
    files_signed_url_s: int = 0
    file_search: bool = True
    file_search_embeddings: str | None = None
    file_search_reranker: str | None = None
    audio_input: str | None = None
    max_audio_bytes: int = 25 * 2**20
    mcp_labels: Mapping[str, str] = {}
    guards: Mapping[str, str] = {}
    prices: Mapping[str, Prices] = {}
    batch_lines: int = 4
    stores_nothing: bool = False
    save_retry_s: float = 5.0
    lease: LeaseConfig = LeaseConfig()
    tool_limits: ToolLimits = ToolLimits()
    reraise: bool = False

    @property
    def keepalive_events(self) -> bool:
        """Whether streams may contain ``keepalive`` events. They may not if the reasoning events
        have the names of Open Responses, because Open Responses has no ``keepalive`` event."""
        return self.reasoning_events != "open_responses"

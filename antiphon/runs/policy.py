"""The operator's policy for runs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from antiphon.runs.background.worker import LeaseConfig
from antiphon.runs.tool_loop.executor import ToolLimits

__all__ = ["Policy"]


class Policy(Struct, frozen=True, kw_only=True):
    """What the operator decided about runs. Times in seconds; None = no limit. ``patience_s``:
    how long a stream waits for the first word of what may be refused. ``unstored_s``: how
    long a background response with ``store: false`` can be fetched after its end. ``webhooks``: the
    ends of background responses are to be told. ``summary_model``: who summarises thinking; None:
    the model that thought. ``max_files_bytes``: of all files of a tenant. ``file_search``: vector
    stores can be searched in responses; ``file_search_embeddings``: the model that makes their
    vectors; None: there are none. ``mcp_labels``: label → the tool of this server it stands for."""

    keepalive_s: float = 15.0
    patience_s: float = 3.0
    timeout_s: float | None = None
    unavailable_tools: str = "ignore"
    reasoning_events: str = "openai"
    undecryptable_items: str = "drop"
    summary_model: str | None = None
    unstored_s: float = 600.0
    webhooks: bool = False
    max_files_bytes: int | None = None
    file_search: bool = True
    file_search_embeddings: str | None = None
    mcp_labels: Mapping[str, str] = {}
    lease: LeaseConfig = LeaseConfig()
    bounds: ToolLimits = ToolLimits()
    reraise: bool = False

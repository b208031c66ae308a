"""Limits and policies: converts the settings that restrict requests, runs, tenants and storage."""

from __future__ import annotations

from msgspec.structs import asdict

from antiphon.config.settings import Settings
from antiphon.config.tenants import Tenant
from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.limits.requests import RequestLimits
from antiphon.models.packaged_embedder import NO_EMBEDDINGS
from antiphon.runs.background.worker import LeaseConfig
from antiphon.runs.policy import Policy
from antiphon.runs.request.moderators import API, MCP
from antiphon.runs.tool_loop.executor import ToolLimits
from antiphon.runs.usage_counter import Prices
from antiphon.store.base import Retention
from antiphon.support.fair_limiter import tenant_share
from antiphon.support.machine import available_bytes
from antiphon.wire.parsing.json_body import BodyLimits

#: The part of the available memory for large request bodies, and how many of the largest bodies fit
#: into it at least. The parsed content of a body needs memory, too.
_BODY_MEMORY_DIVISOR, _MIN_BODIES = 8, 4


def run_policy(settings: Settings) -> Policy:
    """Return the rules for runs from the settings."""
    return Policy(
        keepalive_s=settings.keepalive_s,
        first_delta_wait_s=settings.upstream_start_wait_s,
        timeout_s=settings.timeout_s or None,
        unavailable_tools=settings.unavailable_tools,
        reasoning_events=settings.reasoning_events,
        undecryptable_items=settings.undecryptable_items,
        reasoning_summaries=settings.reasoning_summaries,
        summary_model=settings.summary_model,
        share_prefix_cache=settings.shares_prefix_cache,
        stores_nothing=settings.store_nothing,
        webhooks=settings.webhook.url is not None,
        private_webhooks=settings.webhook.endpoints == "any",
        quotas=tenant_quotas(settings),
        max_tenant_background_runs=settings.max_tenant_background_runs or None,
        files_signed_url_s=settings.files_signed_urls_s,
        file_search=settings.file_search.enabled,
        file_search_embeddings=_unless_off(settings.file_search.embeddings),
        file_search_reranker=_unless_off(settings.file_search.reranker),
        audio_input=settings.audio.input_transcription,
        max_audio_bytes=settings.audio.max_bytes,
        mcp_labels={
            name: each.tool for name, each in settings.mcp.servers.items() if each.tool is not None
        },
        guards=_guards(settings),
        batch_lines=settings.batch_lines,
        prices=_prices(settings),
        tool_limits=ToolLimits(
            max_turns=settings.max_turns,
            max_seconds=settings.max_tool_time_s or None,
            call_timeout_s=settings.tool_timeout_s,
            at_limit=settings.on_tool_limit,
        ),
        lease=LeaseConfig(
            lease_s=settings.lease_s,
            max_runs=settings.max_background_runs,
            max_runs_per_tenant=_tenant_limit(settings, settings.max_background_runs),
        ),
    )


def _guards(settings: Settings) -> dict[str, str]:
    """Return the moderators of the server (see ``Policy.guards``)."""
    servers = settings.mcp.servers if settings.mcp.enabled is not False else {}
    return {
        **{name: model.moderation for name, model in settings.models.items() if model.moderation},
        **{name: API for name, model in settings.models.items() if model.engine == "moderations"},
        **{name: MCP for name, server in servers.items() if server.implements == "moderation"},
    }


def _prices(settings: Settings) -> dict[str, Prices]:
    models = {
        name: Prices(
            model.price_input,
            model.price_input if model.price_cached is None else model.price_cached,
            model.price_output,
        )
        for name, model in settings.models.items()
    }
    tools = {name: Prices(calls=price) for name, price in asdict(settings.tool_prices).items()}
    return {**tools, **models}


def _unless_off(name: str) -> str | None:
    return None if name == NO_EMBEDDINGS else name


def request_limits(settings: Settings) -> RequestLimits:
    """Return the limits for requests from the settings."""
    body_memory = max(
        available_bytes() // _BODY_MEMORY_DIVISOR // settings.workers,
        _MIN_BODIES * settings.max_body_bytes,
    )
    return RequestLimits(
        max_body_bytes=settings.max_body_bytes,
        max_file_bytes=settings.max_file_bytes,
        body_memory_bytes=body_memory,
        body_memory_per_tenant=_tenant_limit(settings, body_memory),
        max_concurrent_requests=settings.max_concurrent_requests,
        max_requests_per_tenant=_tenant_limit(settings, settings.max_concurrent_requests),
        max_queued_requests=settings.max_queued_requests,
        requests_per_minute=settings.requests_per_minute or None,
        body=BodyLimits(
            items=settings.max_items, tools=settings.max_tools, nesting=settings.max_nesting
        ),
    )


def _tenant_limit(settings: Settings, total: int) -> int | None:
    """Return how many of ``total`` concurrent requests or runs one tenant may have. Returns None if
    all keys belong to one tenant, because this tenant may use the whole total."""
    has_one = len({key.tenant for key in settings.keys}) < 2
    if has_one and not settings.stored_keys and not settings.oidc:
        return None
    return tenant_share(total, settings.max_tenant_share)


def tenant_quotas(settings: Settings) -> TenantQuotas:
    """Return the quotas of all tenants from the settings. In the settings, 0 means no limit."""

    def merge(own: Tenant) -> Quotas:
        limits = {}
        for name in Quotas.__struct_fields__:
            limit = getattr(own, name)
            limits[name] = (getattr(settings, name) if limit is None else limit) or None
        return Quotas(**limits)

    tenants = {name: merge(own) for name, own in settings.tenants.items()}
    return TenantQuotas(merge(Tenant()), tenants)


def store_retention(settings: Settings) -> Retention:
    """Return how long the store keeps data. In the settings, 0 means no limit."""
    return Retention(
        max_age_s=settings.retention.days * 86_400 or None,
        max_responses=settings.retention.responses or None,
        max_bytes=settings.retention.bytes or None,
        max_log_age_s=settings.retention.events_s or None,
        max_usage_age_s=settings.retention.usage_days * 86_400 or None,
        max_audit_age_s=settings.retention.audit_days * 86_400 or None,
    )

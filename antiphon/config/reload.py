"""The settings that a running server can apply without a restart."""

from __future__ import annotations

from msgspec import Struct

from .settings import Settings

__all__ = ["RELOADED_SETTINGS", "SettingsChange", "compare_settings"]

#: Settings that a running server can apply. All other settings need a restart.
RELOADED_SETTINGS = frozenset(
    {
        "allowed_hosts",
        "cors_origins",
        "default_model",
        "keys",
        "log_level",
        "max_body_bytes",
        "max_concurrent_requests",
        "max_containers",
        "max_file_bytes",
        "max_files",
        "max_files_bytes",
        "max_items",
        "max_nesting",
        "max_queued_requests",
        "max_responses",
        "max_responses_bytes",
        "max_tools",
        "max_vector_stores",
        "metrics",
        "models",
        "operators",
        "prompt_editors",
        "requests_per_minute",
        "tenants",
    }
)


class SettingsChange(Struct, frozen=True):
    """The names of the settings whose values have changed. ``applied_settings``: settings whose
    change takes effect with a reload. ``needs_restart``: settings whose change takes effect only
    with a restart."""

    applied_settings: tuple[str, ...]
    needs_restart: tuple[str, ...]


def compare_settings(old: Settings, new: Settings) -> SettingsChange:
    """Compare the settings of a running server with new settings, and return the change."""
    changed = [
        name for name in Settings.__struct_fields__ if getattr(old, name) != getattr(new, name)
    ]
    return SettingsChange(
        tuple(name for name in changed if name in RELOADED_SETTINGS),
        tuple(name for name in changed if name not in RELOADED_SETTINGS),
    )

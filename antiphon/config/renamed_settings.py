"""Earlier names of settings. They still work for a time, with a warning, as the compatibility
policy promises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from antiphon.errors import SetupError

__all__ = ["RENAMED_SETTINGS", "with_current_names"]

#: Earlier name → current name. Renamed in 0.2; the earlier names may be removed in 0.4.
RENAMED_SETTINGS: Mapping[str, str] = {
    "broken_seals": "undecryptable_items",
    "code_s": "code_timeout_s",
    "fetch_networks": "fetch_allowed_networks",
    "hosts": "allowed_hosts",
    "image_generation_at_once": "image_generation_parallel",
    "image_generation_bytes": "image_generation_max_bytes",
    "image_generation_pixels": "image_generation_max_pixels",
    "max_background": "max_background_runs",
    "max_running": "max_concurrent_requests",
    "max_tools_s": "max_tool_time_s",
    "max_waiting": "max_queued_requests",
    "mcp_networks": "mcp_allowed_networks",
    "out_of_turns": "on_tool_limit",
    "program_s": "program_cpu_timeout_s",
    "prompt_writers": "prompt_editors",
    "seal_keys": "encryption_keys",
    "upstream_patience_s": "upstream_start_wait_s",
}


def with_current_names(
    values: Mapping[str, Any], spell: Callable[[str], str], warnings: list[str]
) -> dict[str, Any]:
    """Return ``values`` with each earlier name of a setting replaced by the current name.

    - ``values``: the values by current or earlier name, all from one source: the file, the
      environment or the flags.
    - ``spell``: returns how this source writes the name of a setting (as key, variable or flag),
      for warnings and errors.
    - ``warnings``: for each earlier name in ``values``, this function adds a line to this list.

    Raises ``SetupError`` if a setting has a value under both names.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        current = RENAMED_SETTINGS.get(name, name)
        if current != name:
            if current in values:
                raise SetupError(
                    f"{spell(name)} is the earlier name of {spell(current)}: set only the latter"
                )
            warnings.append(f"{spell(name)} is deprecated: it is now called {spell(current)}")
        found[current] = value
    return found

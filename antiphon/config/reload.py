"""Reload the settings of a running server.

The server applies new API keys, limits, models and a new log level. Requests in progress keep the
settings with which they started. All other settings need a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import SetupError
from antiphon.support.log import Log
from antiphon.support.logs import LogLevel
from antiphon.support.tasks import BackgroundTasks

from .load import LoadedSettings, SettingsSources
from .options import options, setting_value
from .settings import Settings

#: Settings that a running server can apply. All other settings need a restart.
RELOADED_SETTINGS = frozenset(
    {
        "allow_hub_models",
        "allowed_hosts",
        "auditors",
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
        name for name in options(Settings) if setting_value(old, name) != setting_value(new, name)
    ]
    return SettingsChange(
        tuple(name for name in changed if name in RELOADED_SETTINGS),
        tuple(name for name in changed if name not in RELOADED_SETTINGS),
    )


class SettingsReloader:
    """Reloads the settings of one process. Only one reload runs at a time.

    - ``loaded``: the current settings.
    - ``sources``: reads the settings again from the settings file, the environment and the flags.
    - ``apply``: a function that applies new settings. If it raises ``SetupError``, it must not
      change anything.
    - ``level``: the log level of ``log``, which a reload may change.
    - ``on_reloaded``: called after each reload that ``start`` began. Its argument is True if the
      new settings are valid.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        sources: SettingsSources,
        apply: Callable[[LoadedSettings], Awaitable[None]],
        *,
        log: Log,
        level: LogLevel,
        on_reloaded: Callable[[bool], None] = lambda is_valid: None,
    ) -> None:
        self._loaded = loaded
        self._shares_prefix_cache = loaded.settings.shares_prefix_cache
        self._sources = sources
        self._apply = apply
        self._log = log
        self._level = level
        self._on_reloaded = on_reloaded
        self._lock = asyncio.Lock()
        self._tasks = BackgroundTasks("reload")

    def start(self) -> None:
        """Start a reload in the background."""
        self._tasks.start(self._reload())

    async def _reload(self) -> None:
        self._on_reloaded(await self.reload())

    async def are_valid(self) -> bool:
        """Whether the settings could be read again now. They are not applied."""
        try:
            await asyncio.to_thread(self._sources.load)
        except SetupError as error:
            self._log.error("the settings are not valid", reason=str(error))
            return False
        return True

    async def reload(self) -> bool:
        """Read the settings again, apply them and log the changed settings. Returns False and
        changes nothing if the new settings are not valid."""
        async with self._lock:
            try:
                loaded = await asyncio.to_thread(self._sources.load)
                await self._apply(self._with_same_caches(loaded))
            except SetupError as error:
                self._log.error("the settings are not reloaded", reason=str(error))
                return False
            change = compare_settings(self._loaded.settings, loaded.settings)
            # The lines about the reload are logged if the earlier or the new level permits them.
            self._level.lower(loaded.settings.log_level)
            self._log.info("the settings are reloaded", changed=change.applied_settings)
            if change.needs_restart:
                self._log.warning("changed settings need a restart", settings=change.needs_restart)
            self._level.set(loaded.settings.log_level)
            self._loaded = loaded
            return True

    def _with_same_caches(self, loaded: LoadedSettings) -> LoadedSettings:
        """Return the new settings with prefix caches as they are. Separate caches stay separate,
        even if only one tenant is left: its keys have to end at once. Raises ``SetupError`` if
        tenants share caches that have to be separate."""
        if not self._shares_prefix_cache:
            return replace(loaded, settings=replace(loaded.settings, share_prefix_cache=False))
        if not loaded.settings.shares_prefix_cache:
            raise SetupError(
                "keys: the first key of another tenant separates the prefix caches of the models,"
                " which needs a restart"
            )
        return loaded

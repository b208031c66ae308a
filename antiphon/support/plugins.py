"""Plug-ins: objects that other installed packages register as entry points in groups
``antiphon.*``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from antiphon.errors import SetupError


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names of all plug-ins in ``group``, an entry point group such as
    ``antiphon.stores``."""
    return tuple(sorted(entry_points(group=group).names))


def load_plugin(
    group: str,
    name: str,
    *,
    setting: str,
    built_in: Iterable[str] = (),
    is_valid: Callable[[Any], bool] | None = None,
) -> Any:
    """Import and return the plug-in with this name.

    ``setting``: the setting whose value is ``name``. ``built_in``: the other valid values of this
    setting, which name built-in implementations. ``is_valid``: function that returns whether
    ``setting`` may name a plug-in of the group; None if it may name all of them.

    Raises ``SetupError`` if no plug-in has this name or the import fails. For an unknown name, the
    message contains ``setting`` and all valid names.
    """
    found = entry_points(group=group)
    if name not in found.names:
        names = sorted(point.name for point in found if _is_listed(point, is_valid))
        valid = ", ".join(dict.fromkeys((*built_in, *names)))
        raise SetupError(
            f"{setting}: {name!r} is unknown: use {valid}, or install a package that registers it"
            f" as an entry point of {group}"
        )
    return _load(found[name])


def _is_listed(point: EntryPoint, is_valid: Callable[[Any], bool] | None) -> bool:
    """Return whether an error lists the plug-in as a valid value. A plug-in that cannot be imported
    is listed: the import error is reported when a setting names the plug-in."""
    try:
        return is_valid is None or is_valid(_load(point))
    except SetupError:
        return True


def load_plugins(group: str) -> Iterator[tuple[str, Any]]:
    """Import all plug-ins of a group. Yields the name of each plug-in and the imported object.
    Raises ``SetupError`` if an import fails."""
    for point in entry_points(group=group):
        yield point.name, _load(point)


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        kind = point.group.rpartition(".")[2].removesuffix("s")
        raise SetupError(f"{kind} {point.name} cannot be loaded: {error}") from None

"""The question of ``antiphon serve`` without a model: whether to serve one that fits here."""

from __future__ import annotations

import sys
from collections.abc import Callable

from antiphon.config.load import LoadedSettings
from antiphon.models.download import resolve
from antiphon.models.gpu import usable_gpu
from antiphon.models.suggestions import Machine, Suggestion, best_fit, this_machine
from antiphon.support.installation import antiphon_command


def propose_model(
    loaded: LoadedSettings,
    *,
    is_terminal: Callable[[], bool] = lambda: sys.stdin.isatty() and sys.stderr.isatty(),
    ask: Callable[[str], str] = input,
    machine: Callable[[], Machine] = lambda: this_machine(usable_gpu()),
) -> str | None:
    """Propose the largest suggested model that fits this machine, and return its source.

    Returns None if the settings name a model, if no model fits, if nobody is at a terminal to be
    asked, or if the user declines.
    """
    best = _best(loaded, machine)
    if best is None or not is_terminal():
        return None
    is_here = resolve(best.source, loaded.settings.cache_dir) is not None
    default = "Y/n" if is_here else "y/N"
    answer = ask(f"{_offer(best, is_here=is_here)} Otherwise a small model. [{default}] ")
    return (
        best.source if answer.strip().lower() in (("y", "yes", "") if is_here else _YES) else None
    )


_YES = ("y", "yes")


def suggestion(
    loaded: LoadedSettings,
    machine: Callable[[], Machine] = lambda: this_machine(usable_gpu()),
) -> str | None:
    """Return the line that tells the user of a server with the small default model which model this
    machine can run. Returns None if the settings name a model, or if no model fits."""
    if (best := _best(loaded, machine)) is None:
        return None
    command = antiphon_command(f"serve {best.source}")
    return f"A small model that knows little. This machine can run {best.name}: {command}"


def _best(loaded: LoadedSettings, machine: Callable[[], Machine]) -> Suggestion | None:
    return best_fit(machine()) if loaded.origins["models"] == "default" else None


def _offer(best: Suggestion, *, is_here: bool) -> str:
    what = f"{best.name} ({best.licence}; {best.good_for})"
    if is_here:
        return f"Serve {what}?"
    return f"This machine can run {what}. Download {best.size_gb:g} GB and serve it?"

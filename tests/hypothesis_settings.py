"""Number of examples for property tests: few in a normal run, the same ones in each run, and many
random ones under ``make fuzz``."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(usual: int, fuzz: int | None = None, **rest: Any) -> settings:
    """Return hypothesis settings with ``usual`` examples.

    Under ``make fuzz`` the number is ``fuzz``, or else the maximum of its profile."""
    if is_fuzz():
        usual = fuzz or settings.get_profile("fuzz").max_examples
    return settings(max_examples=usual, deadline=None, **rest)


def is_fuzz() -> bool:
    """Return whether ``make fuzz`` runs the tests."""
    return settings.get_current_profile_name() == "fuzz"

"""How long a property is searched: a moment in every run, long under `make fuzz`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

__all__ = ["examples"]


def examples(usual: int, fuzz: int | None = None, **rest: Any) -> settings:
    """So many as usual; under `make fuzz` ``fuzz``, or as many as its profile says."""
    if settings.get_current_profile_name() == "fuzz":
        usual = fuzz or settings.get_profile("fuzz").max_examples
    return settings(max_examples=usual, deadline=None, **rest)

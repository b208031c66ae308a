"""Finds the checks of a contract in a module."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isfunction, signature
from typing import Any

__all__ = ["checks_of"]


def checks_of(module: Mapping[str, object], parameter: str) -> Mapping[str, Any]:
    """Return the checks in a module: name → function. The checks are the public functions that
    have ``parameter`` as their only parameter, except those whose names begin with ``check_``.
    ``module``: the names in the module and their values, as ``vars`` returns them."""
    return {
        name: value
        for name, value in module.items()
        if isfunction(value)
        and value.__module__ == module["__name__"]
        and not name.startswith(("_", "check_"))
        and [*signature(value).parameters] == [parameter]
    }

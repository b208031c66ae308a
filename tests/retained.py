"""How much memory an object keeps, for tests of bounds."""

from __future__ import annotations

import gc
import sys

_VALUES = (str, bytes, bytearray, int, float, list, tuple, dict, set, frozenset)


def retained_bytes(root: object) -> int:
    """Return the size of an object of the package and of the values and objects of the package
    that it holds, in bytes."""
    seen: dict[int, object] = {}
    found = [root]
    while found:
        each = found.pop()
        is_own = type(each).__module__.startswith("antiphon.")
        if id(each) not in seen and (is_own or isinstance(each, _VALUES)):
            seen[id(each)] = each
            found += gc.get_referents(each)
            found += [each.__dict__] if is_own and hasattr(each, "__dict__") else []
    return sum(map(sys.getsizeof, seen.values()))

"""Parse regular expressions with Python's own parser.

Only this module uses ``re._parser`` and ``re._constants``, which are private. The standard library
has no public syntax tree of a regex, and another parser could disagree with ``re`` about what a
pattern means.
"""

from __future__ import annotations

import re
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

#: The kinds of nodes in the tree.
opcodes = _constants


class RegexSyntaxError(ValueError):
    """Python cannot parse the pattern as a regular expression. The exception's text says why."""


def parse_regex(pattern: str, flags: int = 0) -> Any:
    """Return the syntax tree of a pattern: a sequence of ``(opcode, argument)`` pairs, as ``re``
    builds it.

    Raises ``RegexSyntaxError`` if the pattern is invalid.
    """
    try:
        return _parser.parse(pattern, flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise RegexSyntaxError(str(error)) from None

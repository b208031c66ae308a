"""Read the arguments of a tool call as a model wrote them.

Models sometimes write lone surrogates, which UTF-8 cannot encode. Both parsers in this module
replace the lone surrogates.
"""

from __future__ import annotations

import json
from typing import Any

from antiphon.errors import ToolError
from antiphon.support.text import replace_lone_surrogates_in_json


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Parse the arguments of a tool that Antiphon runs. Empty text means an empty object.

    Raises ``ToolError``, with a message for the model, if the arguments are not a JSON object.
    """
    try:
        parsed = replace_lone_surrogates_in_json(json.loads(arguments or "{}"))
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ToolError("The arguments are not a JSON object.")
    return parsed


def parse_lenient(arguments: str, default_name: str) -> dict[str, Any]:
    """Parse the arguments of a tool that the client runs. Never raises.

    If the arguments are not a JSON object, the result has one argument, ``default_name``. Its value
    is the parsed JSON value or, if the text is not JSON, the text itself.
    """
    parsed: Any
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = arguments
    parsed = replace_lone_surrogates_in_json(parsed)
    return parsed if isinstance(parsed, dict) else {default_name: parsed}


def non_negative_int(value: Any) -> int | None:
    """Return ``value`` as an integer if it is a number from 0 to 2**31 - 1. Otherwise return None.

    Larger numbers are not accepted, because some clients use 32-bit integers.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value < 2**31 else None

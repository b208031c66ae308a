"""Types of JSON values without a type of their own, such as schemas and options of clients."""

from __future__ import annotations

from typing import Any

__all__ = ["JsonObject"]

#: A JSON object whose fields the code looks up by name.
JsonObject = dict[str, Any]

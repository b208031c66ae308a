"""Render ``docs/not-offered.md`` from the table of what the server does not offer."""

from __future__ import annotations

from antiphon.http.not_offered import NOT_OFFERED

_HEAD = """\
# What is not offered

Generated from `antiphon/http/not_offered.py` by `make docs`.

Antiphon offers parts of three APIs. A request to one of the following paths, or to a path below it,
gets the status 404, and the error says what is missing. [api.md](api.md) lists the endpoints that
exist, and [errors.md](errors.md) the errors for fields that are not supported.

| API | paths | what is missing | instead |
|---|---|---|---|
"""


def not_offered_page() -> str:
    """Render the page."""
    rows = (
        f"| {each.api} | {', '.join(f'`{path}`' for path in each.paths)} | {each.what}"
        f" | {each.instead} |\n"
        for each in NOT_OFFERED
    )
    return _HEAD + "".join(rows)

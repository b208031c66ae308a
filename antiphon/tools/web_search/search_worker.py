"""A program that runs one search with the package ``ddgs`` and prints the results as JSON. It runs
in a separate process.

The package fetches and parses the result pages of search engines, which are untrusted, so the
process runs with the same limits and the same user as the process that reads documents.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from antiphon.attachments.document_worker import confine

#: The package's error message when the engines found nothing. The message is the same when the
#: engines refused the query.
_NO_RESULTS_MESSAGE = "No results found."
_MAX_REASON_CHARS = 200


def answer(request: bytes) -> bytes:
    """Run one search. Return the JSON ``{"results": [{"href", "title", "body"}, …]}`` or
    ``{"error", "reason"}``.

    ``request``: a JSON object with the arguments of the function ``text`` of the package ``ddgs``.
    Its field ``timeout`` is the time limit for one search engine in seconds.
    """
    return json.dumps(_search(**json.loads(request))).encode()


def _search(*, timeout: int, **arguments: Any) -> dict[str, Any]:
    from ddgs.ddgs import DDGS
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    try:
        return {"results": DDGS(timeout=timeout).text(**arguments)}
    except DDGSException as error:
        if str(error) == _NO_RESULTS_MESSAGE:
            return {"results": []}
        kinds = ((TimeoutException, "timeout"), (RatelimitException, "rate_limit"))
        code = next((code for kind, code in kinds if isinstance(error, kind)), "unreachable")
        return {"error": code, "reason": str(error)[:_MAX_REASON_CHARS]}


def main() -> None:
    """Answer the request on standard input. The answer is written to standard output."""
    output = os.dup(1)
    os.dup2(2, 1)  # the output of a parser must not mix with the result
    import ddgs.ddgs  # noqa: F401  # after confine(), Python's folder may be unreadable

    request = sys.stdin.buffer.read()
    confine()
    with open(output, "wb") as out:
        out.write(answer(request))


if __name__ == "__main__":
    main()

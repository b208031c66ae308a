"""Program that searches with the package ``ddgs`` in its own process and prints the results as
JSON.

The package fetches and parses the result pages of search engines, which are untrusted. The process
has the same limits and the same user as the process that reads documents.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from antiphon.attachments.document_worker import confine

__all__ = ["answer", "main"]

#: The package's message if the engines found nothing, and also if they refused the query.
_NO_RESULTS_MESSAGE = "No results found."
_MAX_REASON_CHARS = 200


def answer(request: bytes) -> bytes:
    """Run one search and return ``{"results": [{"href", "title", "body"}, …]}`` or ``{"error",
    "reason"}`` as JSON.

    ``request``: a JSON object with the arguments of the package's ``text`` function and
    ``timeout``, the time limit for one engine in seconds.
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
    """Answer the request on standard input."""
    output = os.dup(1)
    os.dup2(2, 1)  # what a parser prints must not mix with the result
    import ddgs.ddgs  # noqa: F401  # before: the user below may be unable to read Python's folder

    request = sys.stdin.buffer.read()
    confine()
    with open(output, "wb") as out:
        out.write(answer(request))


if __name__ == "__main__":
    main()

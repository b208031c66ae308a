"""Compile a grammar with limits of time, memory and stack. A program of its own, run by its path:
the grammar on standard input; on standard output the library's complaint as JSON, or null.

llguidance recurses on the stack and cannot be interrupted: a grammar made for that purpose ends
this process instead of the server's."""

from __future__ import annotations

import json
import sys
import threading

__all__ = ["compile_grammar"]

#: Address space in bytes, CPU time in seconds.
_MEMORY, _SECONDS = 768 * 2**20, 5
#: Half of what a thread of the server has: what compiles here compiles there.
_STACK = 4 * 2**20


def compile_grammar(lark: str) -> str | None:
    """Return what is wrong with a grammar in llguidance's Lark, or None."""
    import llguidance

    source = llguidance.grammar_from("lark", lark)
    if fault := llguidance.LLMatcher.validate_grammar(source):
        return str(fault)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0)
    matcher.compute_logit_bias()
    return str(matcher.get_error()) if matcher.is_error() else None


def _set_limits() -> None:
    try:
        import resource
    except ImportError:  # not a Unix
        return
    for kind, limit in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _main() -> None:
    lark = sys.stdin.read()
    faults: list[str | None] = []
    threading.stack_size(_STACK)
    thread = threading.Thread(target=lambda: faults.append(compile_grammar(lark)))
    thread.start()
    thread.join()
    sys.stdout.write(json.dumps(faults[0]))


if __name__ == "__main__":
    _set_limits()
    _main()

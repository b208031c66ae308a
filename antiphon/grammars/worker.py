"""Compile a grammar within limits of time, memory and stack.

This file runs as a separate program. It reads the grammar from standard input. It writes
llguidance's error message as JSON to standard output, or ``null`` if the grammar is valid.

llguidance recurses on the stack and cannot be interrupted, so a malicious grammar can crash or
block it. Here, the grammar can only end this separate process, and Antiphon's main process goes on.
"""

from __future__ import annotations

import json
import sys
import threading

from antiphon.ipc.worker_program import limit_program

_MEMORY, _CPU_S, _OPEN_FILES = 768 * 2**20, 5, 64
#: Half of the stack of a thread in the server: a grammar that compiles here also compiles there.
_STACK = 4 * 2**20


def compile_grammar(lark: str) -> str | None:
    """Compile a grammar in llguidance's Lark. Returns the error message, or None if the grammar is
    valid."""
    import llguidance

    source = llguidance.grammar_from("lark", lark)
    if fault := llguidance.LLMatcher.validate_grammar(source):
        return str(fault)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0)
    matcher.compute_logit_bias()
    return str(matcher.get_error()) if matcher.is_error() else None


def _main() -> None:
    lark = sys.stdin.read()
    faults: list[str | None] = []
    threading.stack_size(_STACK)
    thread = threading.Thread(target=lambda: faults.append(compile_grammar(lark)))
    thread.start()
    thread.join()
    sys.stdout.write(json.dumps(faults[0]))


if __name__ == "__main__":
    limit_program(memory=_MEMORY, cpu_s=_CPU_S, open_files=_OPEN_FILES)
    _main()

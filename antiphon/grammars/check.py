"""Check grammars from clients before llguidance compiles them in Antiphon's main process.

On long chains of references, llguidance overflows the stack, and it cannot be interrupted, so a
grammar that may be costly to compile is first compiled in a separate process (``worker``). If this
process crashes or takes too long, the grammar is refused.
"""

from __future__ import annotations

import json
import re
import subprocess
from functools import lru_cache
from pathlib import Path

from antiphon.ipc.worker_program import program_command, program_environment
from antiphon.support.text import nesting_depth, replace_lone_surrogates

_WORKER = Path(__file__).with_name("worker.py")
#: Seconds that the separate process may run, its start included.
_TIMEOUT_S = 15.0
#: Limits below which llguidance certainly compiles a grammar in a few milliseconds: size in
#: characters, number of rules and references, and nesting of brackets.
_CHEAP_SIZE, _CHEAP_RULES, _CHEAP_DEPTH = 16_384, 128, 48
_MAX_SIZE = 1_000_000
_COSTLY = "it takes too long or too much memory to compile."
_RULE = re.compile(r"^[\w?!.-]{1,128}[ \t]{0,8}:", re.MULTILINE)
#: Parts that can make a small grammar large: keywords that combine alternatives, and repetition
#: counts of more than three digits.
_MULTIPLIES = re.compile(r'"allOf"|"not"|"dependentSchemas"|[{,:~]\s?\d{4}')


@lru_cache(maxsize=1024)
def grammar_fault(lark: str) -> str | None:
    """Return the error message for an invalid grammar in llguidance's Lark, or None if the grammar
    is valid.

    The function blocks while llguidance compiles, up to 15 seconds for a complex grammar. Call it
    from a thread. The latest results are cached.
    """
    if len(lark) > _MAX_SIZE:
        return f"it is too long: at most {_MAX_SIZE:,} characters are allowed."
    if replace_lone_surrogates(lark) != lark:
        return "it contains one half of a surrogate pair, which is no character."
    if not is_cheap(lark):
        return _fault_in_process(lark)
    import llguidance

    fault = llguidance.LLMatcher.validate_grammar(llguidance.grammar_from("lark", lark))
    return str(fault) if fault else None


def is_cheap(lark: str) -> bool:
    """Return whether a grammar is so small and flat that Antiphon can compile it in its main
    process. Other grammars are first checked in a separate process.

    Takes time linear in the grammar's length.
    """
    if len(lark) > _CHEAP_SIZE or _MULTIPLIES.search(lark):
        return False
    if len(_RULE.findall(lark)) + lark.count('"$ref"') > _CHEAP_RULES:
        return False
    return nesting_depth(lark) <= _CHEAP_DEPTH


def _fault_in_process(lark: str) -> str | None:
    try:
        done = subprocess.run(
            program_command(_WORKER),
            input=lark.encode(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            env=program_environment(),
        )
        fault: str | None = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return _COSTLY
    return fault

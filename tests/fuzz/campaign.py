"""Check the laws of parsers for many mutated outputs: ``python -m tests.fuzz.campaign``.

It stops after ``--outputs`` outputs or ``--seconds`` seconds, prints the figures, and exits with 1
if an output breaks a law. ``--start`` is the first seed. One seed always gives the same output.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from tests.fuzz.laws import check_laws
from tests.fuzz.mutations import mutate

_MAX_FAILURES = 20


class Figures(Struct, kw_only=True):
    """The results of a campaign: outputs and characters checked, and seed → why it failed."""

    outputs: int = 0
    characters: int = 0
    seconds: float = 0
    failures: dict[int, str]


def check_seed(seed: int) -> int:
    """Check the output of one seed and return its length. Raise what the parser raises, or
    ``AssertionError`` if it breaks a law.
    """
    mutation = mutate(seed)
    check_laws(
        mutation.target,
        mutation.text,
        mutation.cuts,
        thinking=mutation.thinking,
        pieces=mutation.pieces,
    )
    return len(mutation.text)


def run(
    start: int, outputs: int, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Figures:
    """Check the seeds from ``start`` until a limit is reached."""
    figures = Figures(failures={})
    begin = clock()
    for seed in range(start, start + outputs):
        try:
            figures.characters += check_seed(seed)
        except Exception as error:
            figures.failures[seed] = f"{type(error).__name__}: {error}"
        figures.outputs += 1
        figures.seconds = clock() - begin
        if figures.seconds >= seconds or len(figures.failures) >= _MAX_FAILURES:
            break
    return figures


def main(arguments: Sequence[str]) -> int:
    """Run the campaign that the command line describes and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign")
    parser.add_argument("--outputs", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args(arguments)
    figures = run(options.start, options.outputs, options.seconds)
    sys.stdout.write(
        f"{figures.outputs} outputs, {figures.characters} characters, "
        f"{figures.seconds:.0f} s, {len(figures.failures)} failures\n"
    )
    for seed, reason in figures.failures.items():
        sys.stdout.write(f"seed {seed}: {reason[:300]}\n")
    return 1 if figures.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

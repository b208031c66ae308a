"""Replay one seed, or search many.

``python -m tests.simulation SEED`` runs a seed twice, to show that it replays exactly, and prints
its outcome. ``python -m tests.simulation FIRST COUNT`` runs COUNT seeds and prints those that break
an invariant. ``python -m tests.simulation crashes`` runs the stories of ``every_crash.py`` and
prints the awaits of the path of a tool call at which no server crashed. The exit status is 1 if an
invariant is broken.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter

from .crash_points import CrashPoint, awaits_of
from .every_crash import JOURNAL_PATH, STORIES, outcomes
from .world import Outcome, simulate

#: Seeds between two collections of garbage and between two reports of progress.
_COLLECT_EVERY, _REPORT_EVERY = 20, 5000


def main(arguments: list[str]) -> int:
    """Run the command. Returns the exit status."""
    if arguments == ["crashes"]:
        return crash_everywhere()
    first, count = (int(argument) for argument in (*arguments, "1")[:2])
    if count == 1:
        outcome = simulate(first)
        if simulate(first).fingerprint != outcome.fingerprint:
            print("the seed does not replay exactly")
            return 1
        _show(outcome)
        return int(outcome.violation is not None)
    return search(range(first, first + count))


def search(seeds: range) -> int:
    """Run many seeds. Returns 1 if one of them breaks an invariant."""
    counts = Counter[str]()
    broken = 0
    virtual_s = 0.0
    begun = time.monotonic()
    gc.disable()
    gc.freeze()  # the modules: they need not be looked through again and again
    for seed in seeds:
        outcome = simulate(seed)
        counts.update(outcome.counts)
        virtual_s += outcome.virtual_s
        if outcome.violation is not None:
            broken += 1
            print(f"seed {seed}: {outcome.violation[:500]}", flush=True)
        done = seed - seeds.start + 1
        if done % _COLLECT_EVERY == 0:
            gc.collect()
        if done % _REPORT_EVERY == 0:
            print(f"{done} seeds, {time.monotonic() - begun:.0f} s", flush=True)
    print(
        f"{len(seeds)} seeds, {broken} broken, {time.monotonic() - begun:.0f} s, "
        f"{virtual_s / 3600:.0f} hours of virtual time"
    )
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    return int(broken > 0)


def crash_everywhere() -> int:
    """Run each story with a crash at each step. Returns 1 if an invariant is broken."""
    runs = broken = 0
    points: set[CrashPoint] = set()
    for seed, story in enumerate(STORIES):
        for step, outcome in enumerate(outcomes(story, seed)):
            runs += 1
            points |= outcome.crash_points
            if outcome.violation is not None:
                broken += 1
                print(f"{story}, step {step}: {outcome.violation[:500]}", flush=True)
        print(f"{story}: {runs} crashes so far", flush=True)
    for module in JOURNAL_PATH:
        for first, last in awaits_of(module):
            phases = {each.phase for each in points if each.is_within(module, first, last)}
            print(f"{module}:{first}: {', '.join(map(repr, sorted(phases))) or 'no crash'}")
    print(f"{runs} crashes, {broken} broken")
    return int(broken > 0)


def _show(outcome: Outcome) -> None:
    print(f"seed {outcome.seed}, {outcome.virtual_s:.1f} virtual seconds")
    print(", ".join(f"{name}: {count}" for name, count in sorted(outcome.counts.items())))
    print(outcome.violation or "all invariants hold")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

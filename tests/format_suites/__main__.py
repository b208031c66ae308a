"""Run the suites whose sources are there, and print the counts: ``python -m tests.format_suites``.

With ``-v``, the differences are printed, too. A suite without its source is skipped.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.format_suites import llama_cpp, smg, vllm
from tests.format_suites.sources import FOLDER, HINTS, find_source

#: Name of a suite → its source, and the function that runs it.
SUITES: Mapping[str, tuple[str, Callable[[Path], tuple[Counter[str], list[str]]]]] = {
    "llama.cpp": ("llama.cpp", partial(llama_cpp.run, harmony=False)),
    "llama.cpp, gpt-oss": ("llama.cpp", partial(llama_cpp.run, harmony=True)),
    "vLLM": ("vllm", vllm.run),
    "SMG": ("smg", smg.run),
}


def main(arguments: list[str]) -> int:
    """Run the suites and return the exit code."""
    for name, (source, run) in SUITES.items():
        folder = find_source(source)
        if folder is None:
            sys.stdout.write(f"{name}: skipped. Put {HINTS[source]} into {FOLDER / source}.\n")
            continue
        counts, differences = run(folder)
        total = counts["agree"] + counts["differ"]
        left_out = f", {counts['other']} left out" if counts["other"] else ""
        sys.stdout.write(f"{name}: {counts['agree']} of {total} agree{left_out}\n")
        if "-v" in arguments:
            sys.stdout.writelines(f"  {each}\n" for each in differences)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

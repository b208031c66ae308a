"""What efforts come to, and what is wished of an answer in words, for every model family."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.conversation import Options

__all__ = ["LEVELS", "wishes"]

#: Models know three levels of effort.
LEVELS: Mapping[str, str] = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_VERBOSITY: Mapping[str, str] = {
    "low": "Keep your answers short.",
    "high": "Answer at length and in detail.",
}


def wishes(options: Options) -> list[str]:
    """What a model is told of the form of its answer, besides a format of JSON."""
    said = []
    if (guide := options.guide) is not None:
        what = "regular expression" if guide.syntax == "regex" else "Lark grammar"
        said.append(f"Answer with text that matches this {what}:\n{guide.definition}")
    if isinstance(options.text.verbosity, str) and options.text.verbosity in _VERBOSITY:
        said.append(_VERBOSITY[options.text.verbosity])
    return said

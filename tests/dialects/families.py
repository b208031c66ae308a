"""Chat templates of some families, shortened, with the same requirements and quirks.

``smol``: ChatML with a default system message, no tools. ``qwen``: tools, only the current turn's
reasoning, a switch. ``r1``: always reasons, no tools. ``llama``: one call per answer, the date.
``mistral``: alternating roles, call ids of nine characters. ``gemma``: no system role. ``strict``:
one system message, first; arguments must be objects; the reasoning is already open. ``parts``:
content is a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_CHATML = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")

#: Family → its control tokens.
TOKENS: Mapping[str, tuple[str, ...]] = {
    "smol": ("<|im_start|>", "<|im_end|>"),
    "qwen": _CHATML,
    "r1": ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<think>", "</think>"),
    "llama": ("<|begin|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "mistral": ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
    "gemma": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    "strict": _CHATML,
    "parts": ("<|im_start|>", "<|im_end|>"),
}


def source(name: str) -> str:
    """Return the template of a family."""
    return (Path(__file__).parent / "templates" / f"{name}.jinja").read_text(encoding="utf-8")

"""The harmony dialect over gpt-oss's real vocabulary, without a model."""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any

from openai_harmony import HarmonyEncoding

from antiphon.dialects.harmony.dialect import HarmonyDialect
from antiphon.inference.tokens import ModelCard
from tests.real.harmony import HarmonyTokenizer, harmony_encoding

CARD = ModelCard(name="gpt-oss", context_size=4096, architecture="gpt-oss", fingerprint="f")


@functools.cache
def encoding() -> HarmonyEncoding:
    return harmony_encoding()


@functools.cache
def tokenizer() -> HarmonyTokenizer:
    return HarmonyTokenizer(encoding())


def dialect(**how: Any) -> HarmonyDialect:
    today = how.pop("today", lambda: datetime(2026, 7, 9, 23, 59))
    return HarmonyDialect(CARD, tokenizer(), encoding(), today=today, **how)

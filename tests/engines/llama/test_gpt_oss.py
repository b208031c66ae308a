"""llama.cpp's own tokenizer of a gpt-oss: the same ids as the library's, under the contract."""

from __future__ import annotations

import pytest

from antiphon.dialects.harmony.dialect import HarmonyDialect
from antiphon.engines.llama.tokenizer import LlamaTokenizer
from antiphon.testing.dialect_check import check_dialect
from tests.dialects import gpt_oss
from tests.tiny_models.unpacked import tiny_gpt_oss

pytestmark = pytest.mark.e2e

TEXTS = (
    "It's 3.14159 o'clock; we'll SEE what THEY'VE done…\n\n\t  x=12345678\r\n",
    # llama.cpp parts combining marks from their letters (हिन्दी), which tiktoken does not
    "Grüße aus Łódź, 漢字かな交じり文, العربية, 🦄👩‍👩‍👧",
    "def f(a: int) -> None:\n    return {'<|end|>': a}  # <|call|><|reserved_200013|>\n",
)


@pytest.fixture(scope="module")
def tokenizer() -> LlamaTokenizer:
    return LlamaTokenizer(tiny_gpt_oss())


@pytest.mark.parametrize("text", TEXTS)
def test_texts_have_the_ids_of_the_library(tokenizer: LlamaTokenizer, text: str) -> None:
    theirs = gpt_oss.tokenizer()
    for special in (False, True):
        ids = tokenizer.encode(text, special=special)
        assert ids == theirs.encode(text, special=special)
    assert [tokenizer.piece(id) for id in ids] == [theirs.piece(id) for id in ids]


def test_the_dialect_keeps_the_contract_over_it(tokenizer: LlamaTokenizer) -> None:
    dialect = HarmonyDialect(gpt_oss.CARD, tokenizer, gpt_oss.encoding())
    check_dialect(dialect, tokenizer, fingerprint=gpt_oss.CARD.fingerprint)

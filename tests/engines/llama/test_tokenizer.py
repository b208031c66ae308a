"""Our tokenizer against the one of llama.cpp's own server, which is asked over a private socket."""

from __future__ import annotations

import gc
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.llama import tokenizer as module
from antiphon.engines.llama.tokenizer import LlamaTokenizer, split_at_turns
from antiphon.errors import InvalidRequest, SetupError
from antiphon.support import encoding_work
from antiphon.support.encoding_work import count_ids, encode_in_thread, limit_ids
from tests.hypothesis_settings import examples
from tests.real.embedded_model import smollm2

pytestmark = pytest.mark.e2e

PARTS = [*"ab .,\n\t'0é漢🦄", "<|im_start|>", "<|im_end|>", "  ", "'re"]
TEXTS = st.text(max_size=60) | st.lists(st.sampled_from(PARTS), max_size=20).map("".join)
#: Bytes that this vocabulary has no way to write.
UNKNOWN = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}


def vocabulary(text: str) -> str:
    return "".join(letter for letter in text if not UNKNOWN & set(letter.encode()))


@pytest.fixture(scope="module")
def tokenizer() -> LlamaTokenizer:
    return LlamaTokenizer(smollm2())


@pytest.fixture(scope="module")
def llama_http() -> Iterator[httpx.Client]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(smollm2())
    params.n_ctx, params.verbosity, params.warmup = 256, -1, False
    with tempfile.TemporaryDirectory() as folder:
        params.hostnames = [f"{folder}/llama.sock"]
        running: Any = xllamacpp.Server(params)
        transport = httpx.HTTPTransport(uds=params.hostnames[0])
        with httpx.Client(transport=transport, base_url="http://llama") as client:
            yield client
        del running
        gc.collect()


@examples(200)
@given(text=TEXTS, special=st.booleans())
def test_encodes_as_llama_cpp_does(
    tokenizer: LlamaTokenizer, llama_http: httpx.Client, text: str, special: bool
) -> None:
    body = {"content": text, "add_special": False, "parse_special": special}
    expected = llama_http.post("/tokenize", json=body).json()["tokens"]
    assert tokenizer.encode(text, special=special) == expected


def test_long_texts_are_split_before_end_tokens() -> None:
    ends = re.compile("</s>")
    assert [*split_at_turns("ab</s>cdefgh</s></s>", ends, 5)] == ["ab</s>cdefgh", "</s></s>"]


def set_window(patch: pytest.MonkeyPatch, chars: int) -> None:
    patch.setattr(module, "WINDOW_CHARS", chars)
    patch.setattr(encoding_work, "WINDOW_CHARS", chars)


@examples(50)
@given(turns=st.lists(TEXTS, min_size=2, max_size=8))
def test_long_texts_are_encoded_as_whole_ones(tokenizer: LlamaTokenizer, turns: list[str]) -> None:
    text = "<|im_end|>".join(turns)
    whole = tokenizer.encode(text, special=True)
    with pytest.MonkeyPatch.context() as patch:
        set_window(patch, 5)
        assert tokenizer.encode(text, special=True) == whole


@examples(50)
@given(words=st.lists(st.sampled_from([*PARTS, "cat", " sat", " on", "."]), max_size=60))
def test_long_texts_without_turns_are_encoded_as_whole_ones(
    tokenizer: LlamaTokenizer, words: list[str]
) -> None:
    text = "".join(words)
    for special in (True, False):
        whole = tokenizer.encode(text, special=special)
        with pytest.MonkeyPatch.context() as patch:
            set_window(patch, 5)
            assert tokenizer.encode(text, special=special) == whole


@pytest.mark.parametrize("text", ["a cat sat " * 20_000, "a" * 200_000, "<|im_end|>x\n" * 20_000])
async def test_texts_that_are_too_long_are_not_encoded_to_their_end(
    tokenizer: LlamaTokenizer, text: str
) -> None:
    counts: list[int] = []

    def count(ids: int) -> None:
        counts.append(ids)
        count_ids(ids)

    def encode() -> None:
        with pytest.MonkeyPatch.context() as patch, limit_ids(1000):
            patch.setattr(module, "count_ids", count)
            tokenizer.encode(text, special=True)

    with pytest.raises(InvalidRequest):
        await encode_in_thread(encode)
    assert len(text) / sum(counts) > 5, counts


@examples(200)
@given(text=TEXTS.map(vocabulary))
def test_pieces_spell_the_text(tokenizer: LlamaTokenizer, text: str) -> None:
    for special in (True, False):
        ids = tokenizer.encode(text, special=special)
        assert b"".join(map(tokenizer.piece, ids)).decode() == text


def test_lone_surrogate_is_replaced(tokenizer: LlamaTokenizer) -> None:
    assert tokenizer.encode("a\ud83d", special=True) == tokenizer.encode("a?", special=True)


def test_knows_the_special_tokens(tokenizer: LlamaTokenizer) -> None:
    assert tokenizer.special["<|im_start|>"] == 1
    assert tokenizer.special["<|im_end|>"] in tokenizer.end_ids
    assert (tokenizer.bos, tokenizer.eos) == ("<|im_start|>", "<|im_end|>")
    assert not tokenizer.add_bos
    assert tokenizer.size == 49152


def test_text_cannot_spell_a_token_that_llama_cpp_reads_anywhere(
    tokenizer: LlamaTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import re

    monkeypatch.setattr(tokenizer, "_user_defined", re.compile(re.escape("<tool>")))
    split = tokenizer.encode("a <tool> b", special=False)
    assert split == tokenizer.encode("a <", special=False) + tokenizer.encode(
        "tool> b", special=False
    )


def test_unreadable_vocabulary_gives_a_one_line_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(SetupError, match=r"broken\.gguf: .") as raised:
        LlamaTokenizer(broken)
    assert "\n" not in str(raised.value)

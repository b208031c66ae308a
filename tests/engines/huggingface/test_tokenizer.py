"""Tokenizers of each kind, made on the spot, against the library's own reading of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from antiphon.engines.huggingface import tokenizer as module
from antiphon.engines.huggingface.tokenizer import FastTokenizer
from antiphon.errors import InvalidRequest, SetupError
from antiphon.support import encoding_work
from tests.engines.huggingface import hf_files

KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": hf_files.byte_level,
    "sentence_piece": hf_files.sentence_piece,
    "sentence_piece_always": lambda: hf_files.sentence_piece(prepend="always"),
    "unigram": hf_files.unigram,
}
PARTS = [*hf_files.SPECIAL, *hf_files.WORDS, "</s>", "\n\n", "  ", "the", "a", "<", "|>", "é漢🦄"]
TEXTS = st.text(max_size=40) | st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[FastTokenizer, Tokenizer]:
    created = KINDS[request.param]()
    path = hf_files.folder(tmp_path_factory.mktemp(request.param), created) / "tokenizer.json"
    return FastTokenizer(path, end_tokens=["<|im_end|>", "absent", 10**6]), created


def spelled(tokenizer: FastTokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.piece, ids)).decode()


@given(text=TEXTS)
def test_reads_special_tokens_as_the_library_does(
    pair: tuple[FastTokenizer, Tokenizer], text: str
) -> None:
    tokenizer, library = pair
    assert (
        tokenizer.encode(text, special=True) == library.encode(text, add_special_tokens=False).ids
    )


@given(words=st.lists(st.sampled_from([*PARTS, "cat", " sat", " on", "."]), max_size=60))
def test_long_texts_are_encoded_as_whole_ones(
    pair: tuple[FastTokenizer, Tokenizer], words: list[str]
) -> None:
    tokenizer, text = pair[0], "".join(words)
    for special in (True, False):
        whole = tokenizer.encode(text, special=special)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(encoding_work, "WINDOW_CHARS", 5)
            assert tokenizer.encode(text, special=special) == whole


@pytest.mark.parametrize("special", [True, False])
async def test_texts_that_are_too_long_are_not_encoded_to_their_end(special: bool) -> None:
    tokenizer = FastTokenizer(Path("tests/tiny_models/tiny-tools/tokenizer.json"))
    counts: list[int] = []

    def count(ids: int) -> None:
        counts.append(ids)
        encoding_work.count_ids(ids)

    def encode() -> None:
        with pytest.MonkeyPatch.context() as patch, encoding_work.limit_ids(1000):
            patch.setattr(module, "count_ids", count)
            tokenizer.encode("a cat sat " * 40_000, special=special)

    with pytest.raises(InvalidRequest):
        await encoding_work.encode_in_thread(encode)
    assert len(counts) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_no_long_text_is_encoded_under_the_lock_of_the_interpreter(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's method ``encode`` holds it, so the whole process would wait for a long text."""

    class Library:
        def __init__(self, text: str, path: Path | None = None) -> None:
            vars(self)["library"] = Tokenizer.from_str(text)

        def encode(self, text: str, **options: Any) -> Any:
            assert len(text) <= 1000
            return vars(self)["library"].encode(text, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(vars(self)["library"], name)

        def __setattr__(self, name: str, value: object) -> None:
            setattr(vars(self)["library"], name, value)

    monkeypatch.setattr(module, "_open", Library)
    tokenizer = FastTokenizer(hf_files.folder(tmp_path, KINDS[kind]()) / "tokenizer.json")
    for special in (True, False):
        assert tokenizer.encode("the <|im_end|> cat" * 100, special=special)


@pytest.mark.requirement("UP-TEXT")
@given(text=TEXTS)
def test_text_cannot_spell_special_tokens(pair: tuple[FastTokenizer, Tokenizer], text: str) -> None:
    tokenizer, _ = pair
    ids = tokenizer.encode(text, special=False)
    unknown = tokenizer.special.get("<unk>")
    assert not {*tokenizer.special.values()} - {unknown} & set(ids)


@pytest.mark.parametrize("kind", ["byte_level", "sentence_piece"])
def test_pieces_spell_every_text(tmp_path: Path, kind: str) -> None:
    path = hf_files.folder(tmp_path, KINDS[kind]()) / "tokenizer.json"
    tokenizer = FastTokenizer(path)

    @given(text=TEXTS)
    def check(text: str) -> None:
        for special in (True, False):
            shown = spelled(tokenizer, tokenizer.encode(text, special=special))
            # Each stretch of SentencePiece's text may begin with a blank, and its sign is one.
            assert shown.replace(" ", "") == text.replace("▁", " ").replace(" ", "")
            if kind == "byte_level":
                assert shown == text

    check()


def test_a_text_of_control_literals_is_spelled_by_plain_tokens(tmp_path: Path) -> None:
    path = hf_files.folder(tmp_path, hf_files.byte_level()) / "tokenizer.json"
    tokenizer = FastTokenizer(path)
    text = "a<|im_start|>b</think>\n\n"
    plain, read = (tokenizer.encode(text, special=special) for special in (False, True))
    assert spelled(tokenizer, plain) == spelled(tokenizer, read) == text
    assert set(read) >= {tokenizer.special["<|im_start|>"], tokenizer.special["</think>"]}
    # The line feeds were added too, and stay one token: nobody can do harm with them.
    assert plain[-1] == read[-1] == tokenizer.id_of("\n\n")
    assert "\n\n" not in tokenizer.special


def test_partial_characters_are_bytes(tmp_path: Path) -> None:
    for kind in ("byte_level", "sentence_piece"):
        path = hf_files.folder(tmp_path / kind, KINDS[kind]()) / "tokenizer.json"
        tokenizer = FastTokenizer(path)
        ids = tokenizer.encode("ſ", special=True)
        assert b"".join(map(tokenizer.piece, ids)).strip() == "ſ".encode()
        assert len([id for id in ids if tokenizer.piece(id) != b" "]) == 2
    assert tokenizer.encode("a\ud83d", special=True) == tokenizer.encode("a?", special=True)


def test_end_ids_and_vocabulary_size(tmp_path: Path) -> None:
    created = hf_files.byte_level()
    path = hf_files.folder(tmp_path, created) / "tokenizer.json"
    end = created.token_to_id("<|im_end|>")
    tokenizer = FastTokenizer(path, end_tokens=["<|im_end|>", 3, "absent", 10**6], size=5000)
    assert tokenizer.end_ids == {end, 3}
    assert tokenizer.size == 5000
    assert FastTokenizer(path).size == created.get_vocab_size()
    assert tokenizer.piece(4999) == tokenizer.piece(5000) == tokenizer.piece(-1) == b""
    assert tokenizer.bos_id is None
    assert tokenizer.literal(end) == "<|im_end|>"
    assert tokenizer.literal(None) is None


def test_other_files_have_other_fingerprints(tmp_path: Path) -> None:
    paths = [
        hf_files.folder(tmp_path / kind, make()) / "tokenizer.json" for kind, make in KINDS.items()
    ]
    assert len({FastTokenizer(path).fingerprint for path in paths}) == len(KINDS)


def test_unreadable_tokenizer_raises_setup_error(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    with pytest.raises(SetupError, match="cannot be read"):
        FastTokenizer(file)
    file.write_text("{")
    with pytest.raises(SetupError, match="cannot be read"):
        FastTokenizer(file)
    file.write_text("{}")
    with pytest.raises(SetupError, match="not a readable tokenizer"):
        FastTokenizer(file)
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(file))
    with pytest.raises(SetupError, match="kind WordPiece"):
        FastTokenizer(file)

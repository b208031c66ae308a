from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.engines.huggingface.model_folder import read_folder
from antiphon.errors import SetupError
from tests.engines.huggingface import hf_files


def test_reads_all_there_is(tmp_path: Path) -> None:
    created = hf_files.sentence_piece()
    end = created.token_to_id("<|im_end|>")
    path = hf_files.folder(
        tmp_path / "Tiny-Chat",
        created,
        config={
            "model_type": "gpt_oss",
            "eos_token_id": 2,
            "text_config": {"max_position_embeddings": 4096, "vocab_size": 2000},
        },
        generation_config={
            "eos_token_id": [2, end],
            "temperature": 0.6,
            "top_k": 20,
            "top_p": None,
        },
        tokenizer_config={
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "chat_template": [
                {"name": "default", "template": "old"},
                {"name": "tool_use", "template": "tools"},
            ],
        },
        chat_template=hf_files.TEMPLATE,
    )
    tokenizer, card = (found := read_folder(path)).tokenizer, found.card
    assert (card.name, card.architecture, card.context_size) == ("Tiny-Chat", "gpt-oss", 4096)
    assert (card.bos_token, card.eos_token, card.add_bos) == ("<s>", "</s>", True)
    assert card.chat_template == hf_files.TEMPLATE
    assert card.chat_templates == {"tool_use": "tools"}
    assert card.generation == {"temperature": 0.6, "top_k": 20}
    assert card.fingerprint == tokenizer.fingerprint
    assert tokenizer.end_ids == {2, end}
    assert tokenizer.size == 2000


def test_needs_no_more_than_a_tokenizer(tmp_path: Path) -> None:
    path = hf_files.folder(tmp_path / "bare", hf_files.byte_level())
    card = read_folder(path / "tokenizer.json", name="mine", context_size=300).card
    assert (card.name, card.context_size, card.chat_template) == ("mine", 300, None)
    assert (card.bos_token, card.eos_token, card.add_bos) == (None, None, False)


@pytest.mark.parametrize(
    ("limit", "given"), [(None, 4096), (100, 100), (10_000, 4096)], ids=["unset", "less", "more"]
)
def test_context_is_limited_to_the_models(tmp_path: Path, limit: int | None, given: int) -> None:
    config = {"max_position_embeddings": 4096, "text_config": None}
    path = hf_files.folder(tmp_path, hf_files.byte_level(), config=config)
    assert read_folder(path, context_size=limit).card.context_size == given


def test_bos_is_added_where_the_files_say_so(tmp_path: Path) -> None:
    result = {"bos_token": "<s>", "add_bos_token": False}
    path = hf_files.folder(tmp_path, hf_files.sentence_piece(), tokenizer_config=result)
    assert not read_folder(path).card.add_bos


def test_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"tokenizer\.json does not exist"):
        read_folder(tmp_path)
    hf_files.folder(tmp_path, hf_files.byte_level())
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(SetupError, match=r"config\.json cannot be read"):
        read_folder(tmp_path)

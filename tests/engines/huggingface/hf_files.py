"""Small Hugging Face folders, made on the spot: one of each kind of tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = ["the sea was calm and three boats left the harbour at dawn", "Grüße, 漢字 🦄"] * 4
SPECIAL = ("<|begin|>", "<|im_start|>", "<|im_end|>")
WORDS = ("<think>", "</think>")  # added, yet not special, as Qwen's are
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return _with_special(made)


def sentence_piece(*, prepend: str = "first") -> Tokenizer:
    """As Llama 2 and Mistral have it."""
    bytes_ = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    letters = sorted({*"".join(CORPUS).replace(" ", "▁"), *"abcdefghijklmnopqrstuvwxyz<>/s"})
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **bytes_}
    vocabulary |= {letter: 259 + n for n, letter in enumerate(letters)}
    vocabulary["▁t"] = len(vocabulary)
    vocabulary["▁th"] = len(vocabulary)
    merges = [("▁", "t"), ("▁t", "h")]
    made = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return _with_special(made)


def unigram() -> Tokenizer:
    """Its special tokens are words of the vocabulary, and likely ones."""
    letters = sorted({*"".join(CORPUS).replace(" ", "▁"), *"abcdefghijklmnopqrstuvwxyz<>/|_"})
    words = [("<unk>", 0.0), ("</s>", 0.0), *((letter, -5.0) for letter in letters)]
    made = Tokenizer(models.Unigram([*words, ("▁the", -3.0)], unk_id=0, byte_fallback=False))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<unk>", "</s>"])
    return _with_special(made)


def _with_special(made: Tokenizer) -> Tokenizer:
    made.add_special_tokens(list(SPECIAL))
    made.add_tokens([AddedToken(word, normalized=False) for word in (*WORDS, "\n\n")])
    return made


def folder(path: Path, tokenizer: Tokenizer, **files: Any) -> Path:
    """Write a model's folder: ``config="…"`` becomes ``config.json``; strings are templates."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        if isinstance(content, str):
            (path / f"{name}.jinja").write_text(content)
        else:
            (path / f"{name}.json").write_text(json.dumps(content))
    return path

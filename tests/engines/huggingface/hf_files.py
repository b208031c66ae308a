"""Small Hugging Face folders that are created during the test: one for each kind of tokenizer."""

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
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return _with_special(tokenizer)


def sentence_piece(*, prepend: str = "first") -> Tokenizer:
    """Return a SentencePiece tokenizer, like the tokenizers of Llama 2 and Mistral."""
    bytes_ = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    letters = sorted({*"".join(CORPUS).replace(" ", "▁"), *"abcdefghijklmnopqrstuvwxyz<>/s"})
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **bytes_}
    vocabulary |= {letter: 259 + n for n, letter in enumerate(letters)}
    vocabulary["▁t"] = len(vocabulary)
    vocabulary["▁th"] = len(vocabulary)
    merges = [("▁", "t"), ("▁t", "h")]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return _with_special(tokenizer)


def unigram() -> Tokenizer:
    """Return a Unigram tokenizer whose special tokens are likely words of its vocabulary."""
    letters = sorted({*"".join(CORPUS).replace(" ", "▁"), *"abcdefghijklmnopqrstuvwxyz<>/|_"})
    words = [("<unk>", 0.0), ("</s>", 0.0), *((letter, -5.0) for letter in letters)]
    tokenizer = Tokenizer(models.Unigram([*words, ("▁the", -3.0)], unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    return _with_special(tokenizer)


def _with_special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in (*WORDS, "\n\n")])
    return tokenizer


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

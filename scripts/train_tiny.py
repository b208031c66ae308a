"""Train the tests' tiny model: a Qwen3 of 0.7 million weights that thinks and calls tools.

Writes a Hugging Face folder and a GGUF file with the same weights. Needs ``torch``,
``transformers``, ``tokenizers`` and ``gguf``; takes a quarter of an hour on two cores. The training
data comes from ``tiny_dialogues``.

    python -m scripts.train_tiny tests/tiny_models/tiny-tools
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM

from antiphon.dialects.chat.template import Template
from scripts.tiny_dialogues import draw

NAME = "tiny-tools"
VOCABULARY = 1024
CONTEXT = 4096
END = "<|im_end|>"
#: Special tokens, which text never encodes to. ``MARKS`` are special only to templates.
SPECIAL = ("<|endoftext|>", "<|im_start|>", END)
MARKS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
#: Qwen2's pre-tokenizer, which llama.cpp supports as "qwen2".
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
IGNORED = -100
#: Hugging Face's names of a layer's weights → GGUF's.
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class Examples:
    """Prompts and their completions, as the model's own template renders them."""

    def __init__(self, template: str, seed: int) -> None:
        self._template = Template(template, bos=None, eos=END)
        self._random = random.Random(seed)

    def texts(self) -> Iterator[tuple[str, str]]:
        while True:
            messages, tools = draw(self._random)
            prompt = self._template.render(messages[:-1], tools=tools)
            whole = self._template.render(messages, tools=tools, prompt=False).rstrip("\n")
            assert whole.startswith(prompt)
            yield prompt, whole[len(prompt) :]


def train_tokenizer(
    texts: Iterable[str], special: Sequence[str], marks: Sequence[str]
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    plain = []
    for text in islice(texts, 4000):
        for mark in (*special, *marks):
            text = text.replace(mark, "\n")
        plain.append(text)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(special) - len(marks),
        min_frequency=20,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(plain, trainer)
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in marks])
    return tokenizer


def new_model(size: int) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=size,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def batches(examples: Examples, tokenizer: Tokenizer, size: int) -> Iterator[dict[str, Any]]:
    """Yield ids and labels. Only the completion is a training target."""
    texts = examples.texts()
    while True:
        pool = [[tokenizer.encode(part).ids for part in next(texts)] for _ in range(16 * size)]
        pool.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        groups = [pool[at : at + size] for at in range(0, len(pool), size)]
        random.shuffle(groups)
        for group in groups:
            longest = max(len(prompt) + len(said) for prompt, said in group)
            ids = torch.zeros(size, longest, dtype=torch.long)
            labels = torch.full((size, longest), IGNORED)
            for row, (prompt, said) in enumerate(group):
                whole = torch.tensor(prompt + said)
                ids[row, : len(whole)] = whole
                labels[row, len(prompt) : len(whole)] = whole[len(prompt) :]
            yield {"input_ids": ids, "labels": labels}


def train(model: Any, examples: Iterator[dict[str, Any]], steps: int, rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=rate, total_steps=steps, pct_start=0.05
    )
    begun, total = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        loss = model(**next(examples)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.item()
        if step % 50 == 0:
            print(f"{step:5} loss {total / 50:.4f} {time.monotonic() - begun:.0f} s", flush=True)
            total = 0.0


def right(model: Qwen3ForCausalLM, examples: Examples, tokenizer: Tokenizer, count: int) -> float:
    """Return the share of new dialogues whose answer is exactly right."""
    texts, good = examples.texts(), 0
    for _ in range(count):
        prompt, said = next(texts)
        ids, wanted = tokenizer.encode(prompt).ids, tokenizer.encode(said).ids
        logits = model(input_ids=torch.tensor([ids + wanted])).logits[0]
        drawn = logits[len(ids) - 1 : -1].argmax(-1).tolist()
        good += drawn == wanted
    return good / count


def write_folder(folder: Path, model: Any, tokenizer: Tokenizer, template: str) -> None:
    end = tokenizer.token_to_id(END)
    pad = tokenizer.token_to_id("<|endoftext|>")
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    model.config.pad_token_id = model.generation_config.pad_token_id = pad
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "bos_token": None,
        "eos_token": END,
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def write_gguf(path: Path, model: Qwen3ForCausalLM, tokenizer: Tokenizer, template: str) -> None:
    writer = gguf.GGUFWriter(path, "qwen3")
    config = model.config
    writer.add_name(path.stem)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    _write_vocabulary(writer, tokenizer, template)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":
            _write_tensor(writer, _gguf_name(name), weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in whole:
        return whole[name]
    _, _, number, rest = name.split(".", 3)
    return f"blk.{number}.{LAYER[rest.removesuffix('.weight')]}.weight"


def _write_tensor(writer: gguf.GGUFWriter, name: str, values: numpy.ndarray) -> None:
    if values.ndim == 1:  # norms stay as they are
        writer.add_tensor(name, values)
        return
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)


def _write_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer, template: str) -> None:
    size = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(id) for id in range(size)]
    kinds = {
        id: gguf.TokenType.CONTROL if added.special else gguf.TokenType.USER_DEFINED
        for id, added in tokenizer.get_added_tokens_decoder().items()
    }
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(id, gguf.TokenType.NORMAL) for id in range(size)])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokenizer.token_to_id(END))
    writer.add_pad_token_id(tokenizer.token_to_id("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=2, help="of the dialogues that are drawn")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--go-on", action="store_true", help="from the weights that are there")
    given = parser.parse_args()
    random.seed(1)
    torch.manual_seed(1)
    template = (given.folder / "chat_template.jinja").read_text()
    if given.go_on:
        tokenizer = Tokenizer.from_file(str(given.folder / "tokenizer.json"))
        model = Qwen3ForCausalLM.from_pretrained(given.folder, dtype=torch.float32)
    else:
        texts = map("".join, Examples(template, seed=1).texts())
        tokenizer = train_tokenizer(texts, SPECIAL, MARKS)
        model = new_model(tokenizer.get_vocab_size())
    examples = Examples(template, seed=given.seed)
    train(model, batches(examples, tokenizer, given.batch), given.steps, given.rate)
    write_folder(given.folder, model, tokenizer, template)
    write_gguf(given.folder / f"{NAME}.gguf", model, tokenizer, template)
    with torch.no_grad():
        share = right(model.float(), Examples(template, seed=1_000_000), tokenizer, 300)
        print(f"right: {share:.1%}")


if __name__ == "__main__":
    main()

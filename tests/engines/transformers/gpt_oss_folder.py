"""The tiny gpt-oss of the tests as a Hugging Face folder, made of its GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: GGUF's names of a layer's tensors → Hugging Face's.
_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
    "ffn_gate_inp.bias": "mlp.router.bias",
    "ffn_gate_inp.weight": "mlp.router.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    **{
        f"attn_{short}.{part}": f"self_attn.{long}_proj.{part}"
        for short, long in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o"))
        for part in ("weight", "bias")
    },
}
_CONFIG = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
#: o200k's, which llama.cpp calls "gpt-4o".
_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_gpt_oss(source: Path, folder: Path) -> None:
    """Write weights, configuration and tokenizer of the GGUF file ``source``."""
    import gguf
    import torch
    import transformers

    read = gguf.GGUFReader(source)
    values = {field.name: field.contents() for field in read.fields.values()}
    config = transformers.GptOssConfig(
        vocab_size=len(values["tokenizer.ggml.tokens"]),
        hidden_size=values["gpt-oss.embedding_length"],
        intermediate_size=values["gpt-oss.expert_feed_forward_length"],
        num_hidden_layers=values["gpt-oss.block_count"],
        num_attention_heads=values["gpt-oss.attention.head_count"],
        num_key_value_heads=values["gpt-oss.attention.head_count_kv"],
        head_dim=values["gpt-oss.attention.key_length"],
        num_local_experts=values["gpt-oss.expert_count"],
        num_experts_per_tok=values["gpt-oss.expert_used_count"],
        max_position_embeddings=131_072,
        sliding_window=values["gpt-oss.attention.sliding_window"],
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": values["gpt-oss.rope.freq_base"],
            "factor": values["gpt-oss.rope.scaling.factor"],
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        eos_token_id=[200002, 200012],
        tie_word_embeddings=False,
    )
    weights = {
        tensor.name: torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in read.tensors
    }
    model = transformers.GptOssForCausalLM(config)
    model.load_state_dict(_named(weights, config.num_hidden_layers))
    model.save_pretrained(folder)
    _tokenizer(values).save(str(folder / "tokenizer.json"))


def _named(weights: dict[str, Any], layers: int) -> dict[str, Any]:
    import torch

    state = {theirs: weights[ours] for ours, theirs in _CONFIG.items()}
    for layer in range(layers):
        ours, theirs = f"blk.{layer}", f"model.layers.{layer}"
        for one, other in _LAYER.items():
            state[f"{theirs}.{other}"] = weights[f"{ours}.{one}"]
        # Experts read rows, and gate and up lie in turn.
        gate, up = (weights[f"{ours}.ffn_{each}_exps.weight"] for each in ("gate", "up"))
        both = torch.stack((gate, up), dim=2).flatten(1, 2).transpose(1, 2)
        state[f"{theirs}.mlp.experts.gate_up_proj"] = both.contiguous()
        gate, up = (weights[f"{ours}.ffn_{each}_exps.bias"] for each in ("gate", "up"))
        state[f"{theirs}.mlp.experts.gate_up_proj_bias"] = torch.stack((gate, up), 2).flatten(1)
        down = weights[f"{ours}.ffn_down_exps.weight"].transpose(1, 2)
        state[f"{theirs}.mlp.experts.down_proj"] = down.contiguous()
    return state


def _tokenizer(values: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(each.split(" ")) for each in values["tokenizer.ggml.merges"]]
    words = {token: id for id, token in enumerate(tokens) if kinds[id] == 1}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for id, token in enumerate(tokens) if kinds[id] != 1]
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    return tokenizer

"""Train the tests' tiny image model: a LLaVA (CLIP and Qwen3) of half a million weights.

Writes a Hugging Face folder and two GGUF files with the same weights: the model and its image
encoder. The training data comes from ``tiny_pictures``.

    python -m scripts.train_eyes tests/tiny_models/tiny-eyes
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import gguf
import numpy
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

from antiphon.dialects.chat.template import Template
from scripts.tiny_pictures import IMAGE, SIZE, THINGS, Thing, draw, paint
from scripts.train_tiny import (
    CONTEXT,
    END,
    IGNORED,
    SPECIAL,
    train,
    train_tokenizer,
    write_folder,
    write_gguf,
)

MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
PATCH = 8
#: Image placeholder tokens: one row of them for each row of patches.
PLACES = IMAGE * (SIZE // PATCH) ** 2
#: Hugging Face's names of the image encoder's parts → GGUF's.
ENCODER = {
    "vision_tower.embeddings.class_embedding": "v.class_embd",
    "vision_tower.embeddings.patch_embedding": "v.patch_embd",
    "vision_tower.embeddings.position_embedding": "v.position_embd",
    "vision_tower.pre_layrnorm": "v.pre_ln",
    "multi_modal_projector.linear_1": "mm.0",
    "multi_modal_projector.linear_2": "mm.2",
}
LAYER = {
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
#: Pieces of a text, each with whether it is a training target.
Pieces = list[tuple[str, bool]]


class Examples:
    """Dialogues as the model's own template renders them, and the things in their pictures."""

    def __init__(self, template: str, seed: int, *, short: bool = False) -> None:
        self._template = Template(template, eos=END)
        self._short = short
        self.random = random.Random(seed)

    def texts(self) -> Iterator[tuple[Pieces, list[Thing]]]:
        while True:
            messages, tools, things = draw(self.random, short=self._short)
            pieces: Pieces = []
            text = ""
            for number, message in enumerate(messages):
                if message["role"] == "assistant":
                    before = self._template.render(messages[:number], tools=tools)
                    begun = messages[: number + 1]
                    whole = self._template.render(begun, tools=tools, prompt=False).rstrip("\n")
                    assert before.startswith(text) and whole.startswith(before)
                    pieces += [(before[len(text) :], False), (whole[len(before) :], True)]
                    text = whole
            yield pieces, things


def new_model(tokenizer: Tokenizer) -> LlavaForConditionalGeneration:
    text = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        architectures=["Qwen3ForCausalLM"],
    )
    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=SIZE,
        patch_size=PATCH,
    )
    config = LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=tokenizer.token_to_id(IMAGE),
        image_seq_length=(SIZE // PATCH) ** 2,
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    return LlavaForConditionalGeneration(config)


class Glance(torch.nn.Module):
    """The image encoder with a head that names the thing from each patch.

    The encoder learns much faster this way than from text alone. The head is discarded afterwards.
    """

    def __init__(self, model: LlavaForConditionalGeneration) -> None:
        super().__init__()
        self.eyes = model.model
        self.head = torch.nn.Linear(model.config.text_config.hidden_size, len(THINGS))

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        seen = torch.stack(self.eyes.get_image_features(pixel_values=pixel_values).pooler_output)
        named = self.head(seen).flatten(0, 1)
        places = labels.repeat_interleave(seen.shape[1])
        return SimpleNamespace(loss=torch.nn.functional.cross_entropy(named, places))


def glances(seed: int, size: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    while True:
        drawn = [rng.randrange(len(THINGS)) for _ in range(size)]
        pixels = _pixels(rng, [THINGS[number] for number in drawn])
        yield {"pixel_values": pixels, "labels": torch.tensor(drawn)}


def batches(examples: Examples, tokenizer: Tokenizer, size: int) -> Iterator[dict[str, Any]]:
    """Yield arguments of ``forward``. Only assistant text is a training target."""
    texts = examples.texts()
    while True:
        pool = [_encoded(tokenizer, *next(texts)) for _ in range(8 * size)]
        pool.sort(key=lambda row: len(row[0]))
        groups = [pool[at : at + size] for at in range(0, len(pool), size)]
        examples.random.shuffle(groups)
        for group in groups:
            longest = max(len(ids) for ids, *_ in group)
            ids = torch.zeros(size, longest, dtype=torch.long)
            labels = torch.full((size, longest), IGNORED)
            for row, (written, wanted, _) in enumerate(group):
                ids[row, : len(written)] = torch.tensor(written)
                labels[row, : len(wanted)] = torch.tensor(wanted)
            batch = {"input_ids": ids, "labels": labels}
            if things := [thing for *_, shown in group for thing in shown]:
                batch["pixel_values"] = _pixels(examples.random, things)
            yield batch


def _pixels(rng: random.Random, things: list[Thing]) -> torch.Tensor:
    pictures = numpy.stack([paint(rng, thing) for thing in things])
    values = (pictures / 255 - OPENAI_CLIP_MEAN) / OPENAI_CLIP_STD
    return torch.tensor(values.transpose(0, 3, 1, 2), dtype=torch.float32)


def _encoded(
    tokenizer: Tokenizer, pieces: Pieces, things: list[Thing]
) -> tuple[list[int], list[int], list[Thing]]:
    """Return ids, which of them are training targets, and the pictures among them."""
    ids: list[int] = []
    labels: list[int] = []
    for text, counts in pieces:
        written = tokenizer.encode(text.replace(IMAGE, PLACES)).ids
        ids += written
        labels += written if counts else [IGNORED] * len(written)
    return ids, labels, things


def right(model: LlavaForConditionalGeneration, batch: dict[str, Any]) -> float:
    """Return the share of new dialogues in which every answer is exactly right."""
    labels = batch.pop("labels")[:, 1:]
    drawn = model(**batch).logits[:, :-1].argmax(-1)
    return ((drawn == labels) | (labels == IGNORED)).all(-1).float().mean().item()


def rename(path: Path) -> None:
    """Rename the image encoder's tensors to the names of published models, which vLLM expects.

    transformers' newer names leave out a part.
    """
    weights = load_file(path)
    here, there = "vision_tower.", "vision_tower.vision_model."
    save_file({n.replace(here, there): w for n, w in weights.items()}, path, {"format": "pt"})


def write_processor(folder: Path, tokenizer: Tokenizer) -> None:
    """Write the preprocessing configuration: as in llama.cpp, with bars for non-square pictures."""
    LlavaProcessor(
        image_processor=LlavaImageProcessorPil(
            size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}, do_pad=True
        ),
        tokenizer=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token=END, pad_token="<|endoftext|>"
        ),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)


def write_encoder(path: Path, model: LlavaForConditionalGeneration) -> None:
    vision, text = model.config.vision_config, model.config.text_config
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name(path.stem)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("mlp")
    writer.add_vision_image_size(vision.image_size)
    writer.add_vision_patch_size(vision.patch_size)
    writer.add_vision_embedding_length(vision.hidden_size)
    writer.add_vision_feed_forward_length(vision.intermediate_size)
    writer.add_vision_projection_dim(text.hidden_size)
    writer.add_vision_block_count(vision.num_hidden_layers)
    writer.add_array("clip.vision.feature_layer", [vision.num_hidden_layers])
    writer.add_vision_head_count(vision.num_attention_heads)
    writer.add_vision_attention_layernorm_eps(vision.layer_norm_eps)
    writer.add_vision_image_mean(OPENAI_CLIP_MEAN)
    writer.add_vision_image_std(OPENAI_CLIP_STD)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for name, weight in model.model.state_dict().items():
        if (tensor := _tensor_name(name)) is not None:
            if "position_embedding" in name:  # llama.cpp puts the class token after the patches
                weight = weight.roll(-1, 0)
            exact = weight.ndim == 1 or "_embd" in tensor
            kind = numpy.float32 if exact else numpy.float16
            writer.add_tensor(tensor, weight.float().numpy().astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensor_name(name: str) -> str | None:
    """Return GGUF's name; None for a tensor that the encoder does not use."""
    if (whole := ENCODER.get(name)) is not None:
        return whole
    stem, _, kind = name.rpartition(".")
    if (part := ENCODER.get(stem)) is not None:
        return f"{part}.{kind}"
    layers, _, rest = stem.partition("vision_tower.encoder.layers.")
    if layers or not rest:
        return None
    number, _, part = rest.partition(".")
    return f"v.blk.{number}.{LAYER[part]}.{kind}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--glances", type=int, default=1200, help="steps of the eyes alone, first")
    parser.add_argument("--short", type=int, default=400, help="steps of one question each")
    parser.add_argument("--steps", type=int, default=600, help="steps of whole dialogues")
    parser.add_argument("--together", type=int, default=800, help="steps of eyes and words")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3)
    given = parser.parse_args()
    torch.manual_seed(1)
    template = (given.folder / "chat_template.jinja").read_text()
    shown = Examples(template, seed=1).texts()
    texts = ("".join(text for text, _ in pieces) for pieces, _ in shown)
    tokenizer = train_tokenizer(texts, (*SPECIAL, IMAGE), MARKS)
    model = new_model(tokenizer)
    train(Glance(model), glances(4, 2 * given.batch), given.glances, given.rate)
    short, whole, again = (
        batches(Examples(template, seed=seed, short=seed == 2), tokenizer, given.batch)
        for seed in (2, 3, 5)
    )
    for part in (model.model.vision_tower, model.model.multi_modal_projector):
        part.requires_grad_(False)  # an untrained text model would damage the image encoder
    first = chain(islice(short, given.short), whole)
    train(model, first, given.short + given.steps, given.rate)
    model.requires_grad_(True)
    train(model, again, given.together, given.rate / 3)
    write_folder(given.folder, model, tokenizer, template)
    rename(given.folder / "model.safetensors")
    write_processor(given.folder, tokenizer)
    text = Qwen3ForCausalLM(model.config.text_config)
    text.model.load_state_dict(model.model.language_model.state_dict())
    write_gguf(given.folder / "tiny-eyes.gguf", text, tokenizer, template)
    write_encoder(given.folder / "mmproj-tiny-eyes.gguf", model)
    with torch.no_grad():
        fresh = islice(batches(Examples(template, seed=1_000_000), tokenizer, 32), 16)
        share = mean(right(model.float(), batch) for batch in fresh)
        print(f"right: {share:.1%}")


if __name__ == "__main__":
    main()

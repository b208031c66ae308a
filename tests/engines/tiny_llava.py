"""A LLaVA of 200,000 random weights: it says nothing of sense, but other things of other images."""

from __future__ import annotations

from pathlib import Path

from antiphon.engines.base import Engine
from antiphon.tokens import Image, Prompt
from tests.engines.tiny import FOLDER

__all__ = ["make_llava", "shown"]

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shown(engine: Engine, *parts: str | bytes) -> Prompt:
    """Texts, and images with the template's word for one."""
    word = tuple(engine.tokenizer.encode("<image>", special=True))
    ids: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, bytes):
            images.append(Image(part, "image/png", len(ids), word))
        ids += word if isinstance(part, bytes) else engine.tokenizer.encode(part, special=True)
    return Prompt(tuple(ids), tuple(images))


def make_llava(folder: Path) -> None:
    """Write the model, its tokenizer and its processor."""
    import tokenizers
    import torch
    import transformers
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    library = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    library.add_special_tokens([tokenizers.AddedToken("<image>", normalized=False)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(
            vocab_size=library.get_vocab_size(),
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=1024,
            bos_token_id=None,
            eos_token_id=library.token_to_id("<|im_end|>"),
        ),
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=28,
            patch_size=14,
        ),
        image_token_id=library.token_to_id("<image>"),
        vision_feature_layer=-2,
    )
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config)
    for weight in model.parameters():
        weight.data *= 4  # or all images would look alike to it
    model.save_pretrained(folder)
    _named_as_published(folder / "model.safetensors")
    tokenizer.save_pretrained(folder)
    transformers.LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
        ),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def _named_as_published(weights: Path) -> None:
    """As the checkpoints of LLaVA have it, and vLLM reads it."""
    from safetensors.torch import load_file, save_file

    old, new = "vision_tower.", "vision_tower.vision_model."
    tensors = load_file(weights)
    named = {key.replace(new, old).replace(old, new): each for key, each in tensors.items()}
    save_file(named, weights, metadata={"format": "pt"})

"""Images for models of transformers: a prompt's ids and pictures → what ``forward`` takes.

The chat template has a word for an image; the model's processor knows what becomes of that word and
of the picture. It knows no sampling and no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from antiphon.engines.common.image_token_cache import ImageTokenCache
from antiphon.engines.common.pillow_images import open_images
from antiphon.errors import InvalidRequest
from antiphon.tokens import Image, Prompt, Tokenizer

__all__ = ["ImageProcessor"]

#: What a processor says of each token besides its id.
_TYPE_ID_NAMES = ("token_type_ids", "mm_token_type_ids")
#: Tokens of a template's word for an image, of which one is what is replaced.
_MAX_WORD_TOKENS = 8


class _ProcessedImage:
    """What stands for one image: ids, and by kind a number for each of them."""

    def __init__(self, processed: Mapping[str, Any]) -> None:
        self.ids: list[int] = processed["input_ids"][0].tolist()
        self.type_ids = {
            name: processed[name][0].tolist() for name in _TYPE_ID_NAMES if name in processed
        }


class ImageProcessor:
    """The processor of the model in ``folder``. Thread-safe. Raises what transformers raises."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        import transformers

        self._processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
        # Gemma's templates write the token that begins an image, others the one that is repeated.
        named = (getattr(self._processor, name, None) for name in ("boi_token", "image_token"))
        literals = [str(literal) for literal in named if literal in tokenizer.special]
        if not literals:
            raise ValueError("its processor has no token for images")
        self._image_tokens = {tokenizer.special[literal]: literal for literal in literals}
        self._image_literal = literals[0]
        self._image_token_cache = ImageTokenCache()

    def extra_tokens(self, image: Image) -> int:
        """How many ids stand for it, besides the one it replaces."""
        known = self._image_token_cache.get(image)
        if known is not None:
            return known
        (picture,) = open_images([image])
        return self._image_token_cache.put(image, len(self._process_one(picture).ids) - 1)

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Tensors by name, ``input_ids`` among them. Raises ``InvalidRequest``."""
        import torch

        pictures = open_images(prompt.images)
        processed_images = [self._process_one(picture) for picture in pictures]
        rows: dict[str, list[int]] = {"input_ids": []}
        rows |= {name: [] for each in processed_images for name in each.type_ids}
        for ids, each in self._pieces(prompt, processed_images):
            rows["input_ids"] += each.ids if each is not None else ids
            for name in rows.keys() - {"input_ids"}:
                rows[name] += each.type_ids[name] if each is not None else [0] * len(ids)
        processed = self._process(self._image_literal * len(pictures), pictures)
        tensors = {
            name: value
            for name, value in processed.items()
            if name not in ("input_ids", "attention_mask", *_TYPE_ID_NAMES)
        }
        return {**tensors, **{name: torch.tensor([row]) for name, row in rows.items()}}

    def _pieces(
        self, prompt: Prompt, processed_images: list[_ProcessedImage]
    ) -> Iterator[tuple[list[int], _ProcessedImage | None]]:
        """The prompt in order: ids, or what stands for an image."""
        start = 0
        for image, each in zip(prompt.images, processed_images, strict=True):
            place = self._image_token_index(prompt, max(image.at, start))
            yield list(prompt.ids[start:place]), None
            yield [], each
            start = place + 1
        yield list(prompt.ids[start:]), None

    def _image_token_index(self, prompt: Prompt, at: int) -> int:
        for place in range(at, min(at + _MAX_WORD_TOKENS, len(prompt.ids))):
            if prompt.ids[place] in self._image_tokens:
                return place
        raise InvalidRequest("This model's chat template does not show images.", param="input")

    def _process_one(self, picture: Any) -> _ProcessedImage:
        return _ProcessedImage(self._process(self._image_literal, [picture]))

    def _process(self, text: str, pictures: list[Any]) -> Mapping[str, Any]:
        processed: Mapping[str, Any] = self._processor(
            text=[text], images=pictures, return_tensors="pt", add_special_tokens=False
        )
        return processed

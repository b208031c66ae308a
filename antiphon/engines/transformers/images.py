"""Convert the token ids and the images of a prompt to arguments of a transformers model's
``forward``.

The chat template writes a placeholder for each image. The model's processor replaces the
placeholder by image tokens, and encodes the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from antiphon.engines.common.pillow_images import open_images
from antiphon.errors import InvalidRequest
from antiphon.inference.tokens import EncodedImage, Prompt, Tokenizer

#: Outputs of a processor, besides the ids, that have one value per token.
_TYPE_ID_NAMES = ("token_type_ids", "mm_token_type_ids")
#: The maximum number of tokens in the placeholder of a chat template. One of them is replaced.
_MAX_PLACEHOLDER_TOKENS = 8


class _ProcessedImage:
    """The tokens that replace the placeholder of one image.

    ``ids``: the ids of these tokens. ``type_ids``: name of a type tensor → one type id for each
    token. A name is, for example, ``token_type_ids``.
    """

    def __init__(self, processed: Mapping[str, Any]) -> None:
        self.ids: list[int] = processed["input_ids"][0].tolist()
        self.type_ids = {
            name: processed[name][0].tolist() for name in _TYPE_ID_NAMES if name in processed
        }


class ImageProcessor:
    """The image processor of the model in ``folder``. Thread-safe.

    The constructor raises the exceptions of transformers, and ``ValueError`` if the processor has
    no token for images.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        import transformers

        self._processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
        # Gemma's templates write the begin-of-image token. Other templates write the image token.
        named = (getattr(self._processor, name, None) for name in ("boi_token", "image_token"))
        literals = [str(literal) for literal in named if literal in tokenizer.special]
        if not literals:
            raise ValueError("its processor has no token for images")
        self._image_tokens = {tokenizer.special[literal]: literal for literal in literals}
        self._image_literal = literals[0]

    def extra_tokens(self, image: EncodedImage) -> int:
        """Return the number of token ids that the image adds to the prompt: the number of its image
        tokens, minus one for the placeholder token that they replace."""
        (picture,) = open_images([image])
        return len(self._process_one(picture).ids) - 1

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Return the tensors for ``forward`` by argument name, including ``input_ids``. Raises
        ``InvalidRequest`` if an image cannot be decoded or has no placeholder in the prompt."""
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
        """Yield the parts of the prompt in order. For a sequence of token ids, yield the ids and
        None. For an image, yield an empty list and the processed image."""
        start = 0
        for image, each in zip(prompt.images, processed_images, strict=True):
            index = self._image_token_index(prompt, max(image.position, start))
            yield list(prompt.ids[start:index]), None
            yield [], each
            start = index + 1
        yield list(prompt.ids[start:]), None

    def _image_token_index(self, prompt: Prompt, at: int) -> int:
        for index in range(at, min(at + _MAX_PLACEHOLDER_TOKENS, len(prompt.ids))):
            if prompt.ids[index] in self._image_tokens:
                return index
        raise InvalidRequest("This model's chat template does not show images.", param="input")

    def _process_one(self, picture: Any) -> _ProcessedImage:
        return _ProcessedImage(self._process(self._image_literal, [picture]))

    def _process(self, text: str, pictures: list[Any]) -> Mapping[str, Any]:
        processed: Mapping[str, Any] = self._processor(
            text=[text], images=pictures, return_tensors="pt", add_special_tokens=False
        )
        return processed

"""Images for models of transformers: a prompt's ids and pictures → what ``forward`` takes.

The chat template has a word for an image; the model's processor knows what becomes of that word and
of the picture. It knows no sampling and no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from antiphon.engines.common.image_token_cache import ImageSizes
from antiphon.engines.common.pillow_images import open_images
from antiphon.errors import InvalidRequest
from antiphon.tokens import Image, Prompt, Tokenizer

__all__ = ["Eyes"]

#: What a processor says of each token besides its id.
_KINDS = ("token_type_ids", "mm_token_type_ids")
#: Tokens of a template's word for an image, of which one is what is replaced.
_WORD = 8


class _Seen:
    """What stands for one image: ids, and by kind a number for each of them."""

    def __init__(self, made: Mapping[str, Any]) -> None:
        self.ids: list[int] = made["input_ids"][0].tolist()
        self.kinds = {name: made[name][0].tolist() for name in _KINDS if name in made}


class Eyes:
    """The processor of the model in ``folder``. Thread-safe. Raises what transformers raises."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        import transformers

        self._processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
        # Gemma's templates write the token that begins an image, others the one that is repeated.
        named = (getattr(self._processor, name, None) for name in ("boi_token", "image_token"))
        literals = [str(literal) for literal in named if literal in tokenizer.special]
        if not literals:
            raise ValueError("its processor has no token for images")
        self._literals = {tokenizer.special[literal]: literal for literal in literals}
        self._literal = literals[0]
        self._sizes = ImageSizes()

    def tokens(self, image: Image) -> int:
        """How many ids stand for it, besides the one it replaces."""
        known = self._sizes.known(image)
        if known is not None:
            return known
        (picture,) = open_images([image])
        return self._sizes.keep(image, len(self._seen(picture).ids) - 1)

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Tensors by name, ``input_ids`` among them. Raises ``InvalidRequest``."""
        import torch

        pictures = open_images(prompt.images)
        seen = [self._seen(picture) for picture in pictures]
        rows: dict[str, list[int]] = {"input_ids": []}
        rows |= {name: [] for each in seen for name in each.kinds}
        for ids, each in self._pieces(prompt, seen):
            rows["input_ids"] += each.ids if each is not None else ids
            for name in rows.keys() - {"input_ids"}:
                rows[name] += each.kinds[name] if each is not None else [0] * len(ids)
        made = self._made(self._literal * len(pictures), pictures)
        tensors = {
            name: value
            for name, value in made.items()
            if name not in ("input_ids", "attention_mask", *_KINDS)
        }
        return {**tensors, **{name: torch.tensor([row]) for name, row in rows.items()}}

    def _pieces(
        self, prompt: Prompt, seen: list[_Seen]
    ) -> Iterator[tuple[list[int], _Seen | None]]:
        """The prompt in order: ids, or what stands for an image."""
        start = 0
        for image, each in zip(prompt.images, seen, strict=True):
            place = self._place(prompt, max(image.at, start))
            yield list(prompt.ids[start:place]), None
            yield [], each
            start = place + 1
        yield list(prompt.ids[start:]), None

    def _place(self, prompt: Prompt, at: int) -> int:
        for place in range(at, min(at + _WORD, len(prompt.ids))):
            if prompt.ids[place] in self._literals:
                return place
        raise InvalidRequest("This model's chat template does not show images.", param="input")

    def _seen(self, picture: Any) -> _Seen:
        return _Seen(self._made(self._literal, [picture]))

    def _made(self, text: str, pictures: list[Any]) -> Mapping[str, Any]:
        made: Mapping[str, Any] = self._processor(
            text=[text], images=pictures, return_tensors="pt", add_special_tokens=False
        )
        return made

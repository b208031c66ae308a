"""Images as engines take them that want them open."""

from __future__ import annotations

import pytest

from antiphon.engines.common.pillow_images import open_images
from antiphon.errors import InvalidRequest
from antiphon.inference.tokens import EncodedImage
from tests.attachments.samples import png


def test_what_is_too_large_to_open_is_the_requests_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    pillow = pytest.importorskip("PIL.Image")
    image = EncodedImage(png(), "image/png", 0)
    (picture,) = open_images([image])
    assert (picture.mode, picture.size) == ("RGB", (2, 3))
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 1)
    with pytest.raises(InvalidRequest, match="Invalid image"):
        open_images([image])

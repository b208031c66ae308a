"""``antiphon demo``: a scripted model that uses the real tools. It shows how the API works without
a large model."""

__all__: list[str] = []

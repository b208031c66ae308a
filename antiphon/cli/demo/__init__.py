"""``antiphon demo``: a scripted model that uses the real tools, so that the API is seen at work
without a large model."""

__all__: list[str] = []

"""``antiphon demo``: shows how the API works without a large model. A script plays the model. The
tools are real."""

__all__: list[str] = []

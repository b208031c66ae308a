"""``antiphon demo``: shows how the API works without a language model. The answers come from a
script. The tools are real."""

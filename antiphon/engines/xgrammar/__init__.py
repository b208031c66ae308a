"""Convert constraints to grammars for xgrammar, the library that SGLang and vLLM use to enforce
grammars."""

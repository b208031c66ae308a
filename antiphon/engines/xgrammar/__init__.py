"""What a constraint is to xgrammar, which SGLang and vLLM enforce grammars with."""

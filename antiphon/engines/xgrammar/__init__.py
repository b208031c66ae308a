"""Convert constraints for xgrammar, the library with which SGLang and vLLM enforce grammars."""

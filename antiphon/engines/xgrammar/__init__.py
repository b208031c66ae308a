"""Constraints for xgrammar, with which SGLang and vLLM enforce grammars."""

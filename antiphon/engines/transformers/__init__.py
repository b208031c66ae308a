"""The transformers engine, which runs models with Hugging Face's library ``transformers``."""

"""Reads tokenizers and model cards from model folders in Hugging Face's layout."""

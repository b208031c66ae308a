"""Model folders in Hugging Face's layout."""

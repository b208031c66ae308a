"""File search: a function with which the model searches vector stores, and citations of files."""

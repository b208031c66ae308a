"""File search: a function for the model over vector stores, and citations of files."""

"""The tool ``file_search``. The model calls a function that searches vector stores, and its answers
cite the files that the function found."""

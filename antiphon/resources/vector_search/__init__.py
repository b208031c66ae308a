"""Vector stores: their files, the indexing of files, and the search."""

"""Objects that clients manage besides responses: files, vector stores, containers, skills and
more."""

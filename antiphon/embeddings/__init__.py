"""Who makes vectors of texts. They know neither requests nor conversations."""

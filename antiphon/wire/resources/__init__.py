"""Wire types of what clients manage besides responses."""

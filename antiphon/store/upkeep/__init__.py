"""What a server does with its store besides reading and writing: it follows the store's clock,
checks whether the store can be written, deletes expired data, and reports what the store does."""

"""Files of clients: their contents, uploads in parts, and moves to other storage."""

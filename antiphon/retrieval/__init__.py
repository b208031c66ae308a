"""Split texts into chunks, search their vectors exactly, and merge rankings."""

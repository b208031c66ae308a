"""A backend made of an engine and a dialect."""

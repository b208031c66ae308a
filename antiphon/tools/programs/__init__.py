"""Programmatic tool calling: the model writes programs that call tools."""

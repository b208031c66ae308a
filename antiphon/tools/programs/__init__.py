"""Programmatic tool calling: the model writes programs (JavaScript code) that call tools."""

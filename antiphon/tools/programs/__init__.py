"""Programmatic tool calling: programs that call tools."""

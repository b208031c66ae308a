"""Ollama's API, translated to the types of the Responses API."""

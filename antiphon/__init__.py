"""Antiphon: the OpenAI Responses API for the models you run yourself."""

__all__ = ["__version__"]

__version__ = "0.1.0"

"""Anthropic's Messages API as a translation of the Responses API."""

"""Anthropic's Messages API, offered by translation to and from the Responses API."""

"""Engines. An engine gets a prompt as token ids and generates the next tokens. All engines have the
same interface."""

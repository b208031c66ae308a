"""Output validation: answer formats, tool calls, grammars, retries."""

"""Output validation: check the format of answers and tool calls, and retry invalid replies."""

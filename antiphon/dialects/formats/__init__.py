"""Tables of the formats in which model families write tool calls and reasoning."""

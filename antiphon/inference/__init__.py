"""Values of one model call: the conversation, the sampling options, and the tokens that engines
receive and return."""

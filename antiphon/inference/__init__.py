"""Values of one model call: the conversation, its options, and the tokens that engines exchange."""

"""The conversation a request continues, as the model will see it."""

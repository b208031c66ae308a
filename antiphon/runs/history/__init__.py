"""Loads the conversation that a request continues, in the form that the model will see."""

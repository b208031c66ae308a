"""Parse JSON into wire types, with errors in OpenAI's words."""

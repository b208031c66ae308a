"""From JSON to wire types, with errors in OpenAI's words."""

"""Wire types: the Responses API as frozen values, with their parsers. This package uses no other
code of the project, except the errors and the helpers for text."""

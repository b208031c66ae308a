"""Types of the JSON that clients and the server exchange, with their parsers. The types are frozen
msgspec structs. This package uses no other code of the project, except the errors and the helpers
for text."""

"""The OpenAPI document of the server, generated from its routes and the wire types."""

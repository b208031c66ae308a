"""The SSRF guard, and the encryption of data that clients keep for the server."""

"""Protection against requests to internal addresses (SSRF), and encryption of data that clients
keep for the server."""

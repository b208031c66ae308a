"""The SSRF guard and the encryption of items that clients hold."""

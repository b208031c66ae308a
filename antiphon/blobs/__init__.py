"""Blob storage, in object storage or in a folder. It holds contents of files and of large responses
outside of the store."""

"""External storage for contents of files: object storage or a folder."""

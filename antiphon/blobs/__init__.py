"""Contents of files outside of the store: object storage or a folder."""

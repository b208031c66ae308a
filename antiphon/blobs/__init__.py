"""Storage for contents of files outside of the store, in blobs: object storage or a folder."""

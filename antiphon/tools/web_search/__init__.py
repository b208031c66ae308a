"""Web search: a browser for the web or for a local index of pages, and citations of pages."""

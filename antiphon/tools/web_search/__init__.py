"""Web search: a browser over the web or a local index of pages, and citations of pages."""

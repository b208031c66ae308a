"""Web search: a browser over pages of the web or an index of one's own, and citations of them."""

"""Files and images that come with a request: fetch, check, extract text. Nothing is stored."""

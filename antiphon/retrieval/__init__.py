"""Split texts into chunks, search for the chunks nearest to a query, and merge rankings."""

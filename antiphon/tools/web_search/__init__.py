"""The web search tool. It gives the model functions that search the web or a local index of pages,
and functions that read pages. It also adds citations of these pages to the answer."""

"""Web search: functions with which the model searches the web, or a local index of pages, and reads
pages; and citations of these pages."""

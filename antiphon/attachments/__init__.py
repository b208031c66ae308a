"""What comes with a request besides its text: fetched, checked and read. Nothing of it is kept."""

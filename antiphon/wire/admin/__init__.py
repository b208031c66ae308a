"""Wire types of what operators manage and look at."""

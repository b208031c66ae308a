"""Wire types for administration: data that operators manage or inspect."""

"""Code that several kinds of stores share."""

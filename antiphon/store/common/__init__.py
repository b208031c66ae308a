"""What several kinds of stores share."""

"""Who answers: anything that turns a conversation into deltas."""

"""Models that write down speech, and models that read texts aloud."""

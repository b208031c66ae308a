"""Settings: declarations of options, loading from file, environment and flags."""

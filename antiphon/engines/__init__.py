"""Engines. An engine continues token ids; all engines have the same interface."""

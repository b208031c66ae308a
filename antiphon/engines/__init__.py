"""Engines: they continue token ids, behind one method."""

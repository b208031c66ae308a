"""Tests of other projects' parsers of model output, run on our dialects.

The cases are read from published sources that lie in a folder on this machine, and nothing of these
sources is part of this repository: see ``sources.py``.
"""

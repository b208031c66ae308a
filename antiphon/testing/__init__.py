"""Fakes and contract checks for tests of engines, dialects, backends, tools and stores. Authors of
plug-ins can use them."""

"""Checks of the parts of a store. ``store_check`` runs all of them."""

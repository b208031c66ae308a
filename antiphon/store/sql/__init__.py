"""The stores' logic that is the same for all SQL databases, written once over an ``Executor``."""

"""The events of a response. ``writer`` creates events, and ``fold`` rebuilds a response from its
events. Nothing in this package does I/O."""

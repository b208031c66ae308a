"""An optional message bus, NATS or Redis. It delivers new events of runs to the processes whose
clients read these runs."""

__all__: list[str] = []

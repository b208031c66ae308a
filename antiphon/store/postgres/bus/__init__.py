"""An optional message bus, NATS or Redis. It brings new events to the processes that follow a
run."""

__all__: list[str] = []

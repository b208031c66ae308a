"""The containers that this process owns, by id."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from antiphon.sandbox.base import Sandbox
from antiphon.wire.resources import containers as wc

from .container import Container, ContainerPolicy, Uploads
from .handle import container_expired, container_not_found
from .network import OpenEgress

__all__ = ["LocalContainers"]

#: The number of expired containers whose status can still be queried.
_MAX_EXPIRED = 1000


class LocalContainers:
    """Containers over ``sandbox``. ``clock`` returns Unix seconds. ``egress``: makes the proxies of
    containers with a network."""

    def __init__(
        self,
        sandbox: Sandbox,
        policy: ContainerPolicy,
        *,
        uploads: Uploads,
        clock: Callable[[], float],
        ids: Callable[[str], str],
        egress: OpenEgress | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._policy = policy
        self._uploads = uploads
        self._clock = clock
        self._ids = ids
        self._egress = egress
        self._containers: dict[str, Container] = {}

    def __iter__(self) -> Iterator[Container]:
        return iter(tuple(self._containers.values()))

    def make(self, tenant: str, request: wc.CreateContainer, *, is_auto: bool) -> Container:
        """Make a container, which ``add`` adds. Its box is opened when it is needed."""
        return Container(
            tenant,
            request,
            id=self._ids("cntr"),
            policy=self._policy,
            open=self._sandbox.open,
            uploads=self._uploads,
            clock=self._clock,
            ids=self._ids,
            egress=self._egress,
            is_auto=is_auto,
        )

    def add(self, container: Container) -> None:
        """Add a container."""
        self._containers[container.id] = container

    def find(self, tenant: str, container_id: str) -> Container | None:
        """Return a container of this process, or None."""
        container = self._containers.get(container_id)
        return container if container is not None and container.tenant == tenant else None

    def get(self, tenant: str, container_id: str) -> Container:
        """Return a container of this process. Raises ``NotFound``."""
        container = self.find(tenant, container_id)
        if container is None:
            raise container_not_found(container_id)
        return container

    def get_active(self, tenant: str, container_id: str) -> Container:
        """Return a container that can be used. Raises ``NotFound``, ``InvalidRequest``."""
        container = self.get(tenant, container_id)
        if not container.is_active:
            raise container_expired(container_id)
        return container

    def remove(self, container_id: str) -> None:
        """Forget a container, whose box is closed or was never opened."""
        self._containers.pop(container_id, None)

    async def close_expired(self) -> None:
        """Close the boxes of expired containers, and remove the oldest of these containers."""
        expired = [container for container in self if not container.is_active]
        for container in expired:
            await container.close()
        for container in expired[: max(0, len(expired) - _MAX_EXPIRED)]:
            self.remove(container.id)

"""Dependencies of the endpoints that start runs, created once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from antiphon.http.middleware.auth import RequestLimits

from .admission import AdmissionQueue
from .metrics import Metrics

if TYPE_CHECKING:
    from antiphon.runs.service import Service

__all__ = ["EndpointDependencies"]


class EndpointDependencies(Struct, frozen=True, kw_only=True):
    """``clock`` returns monotonic seconds; ``log`` is a structlog logger."""

    service: Service
    admission: AdmissionQueue
    metrics: Metrics
    clock: Callable[[], float]
    limits: RequestLimits
    log: Any

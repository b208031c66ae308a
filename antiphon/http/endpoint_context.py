"""What the rim has at hand to answer with: made once, shown to every endpoint that starts runs.

It knows no route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from antiphon.http.middleware.auth import Limits

from .admission import AdmissionQueue
from .metrics import Metrics

if TYPE_CHECKING:
    from antiphon.runs.service import Service

__all__ = ["EndpointContext"]


class EndpointContext(Struct, frozen=True, kw_only=True):
    """``clock`` gives monotonic seconds; ``log`` is a structlog logger."""

    service: Service
    gate: AdmissionQueue
    metrics: Metrics
    clock: Callable[[], float]
    limits: Limits
    log: Any

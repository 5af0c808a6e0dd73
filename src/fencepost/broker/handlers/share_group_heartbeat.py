"""ShareGroupHeartbeat (76): v1

Behaviour: refuses, as a Kafka broker whose share groups (KIP-932) are switched off does. The API is
           listed for the same reason as ConsumerGroupHeartbeat.
Versions:  v1 is the only one.
Errors:    UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.wire.forms.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

REFUSED: Final = "This broker does not serve share groups."


def handle(request: ShareGroupHeartbeatRequest, context: Context) -> ShareGroupHeartbeatResponse:
    """Serves one request; see above."""
    return ShareGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=REFUSED
    )

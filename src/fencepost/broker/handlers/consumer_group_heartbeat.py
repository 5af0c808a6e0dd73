"""ConsumerGroupHeartbeat (68): v0-1

Behaviour: refuses, as a Kafka broker whose consumer protocol (KIP-848) is switched off does. The
           API is listed for the sake of librdkafka: where it is missing, librdkafka looks for
           another coordinator for ever; a refusal is a fatal error that its user sees.
Versions:  v1 patterns of topics, and member ids chosen by clients (KIP-1082).
Errors:    UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.wire.forms.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

REFUSED: Final = "This broker does not serve the consumer protocol: set group.protocol=classic."


def handle(
    request: ConsumerGroupHeartbeatRequest, context: Context
) -> ConsumerGroupHeartbeatResponse:
    """Serves one request; see above."""
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=REFUSED
    )

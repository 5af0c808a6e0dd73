"""SaslHandshake (17): v0-1

Behaviour: chooses the mechanism of a login, or of a re-authentication on an open session (KIP-368).
           The reply lists the mechanisms of the listener. An error closes the connection after
           `connection.failed.authentication.delay.ms`.
Versions:  v0, after which tokens have no request around them, is refused with UNSUPPORTED_VERSION.
           It is advertised, because librdkafka tells from it that there is a handshake.
Errors:    UNSUPPORTED_SASL_MECHANISM, UNSUPPORTED_VERSION, ILLEGAL_SASL_STATE (a listener without
           SASL).
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(request: SaslHandshakeRequest, context: Context) -> SaslHandshakeResponse | Parked:
    """Serves one request; see above."""
    if context.session is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return context.session.choose(request.mechanism, context.api_version)

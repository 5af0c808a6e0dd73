"""SaslAuthenticate (36): v0-2

Behaviour: goes on with the login that SaslHandshake has begun. A failed one is answered after
           `connection.failed.authentication.delay.ms`, with the same sentence for every cause, and
           closes the connection.
Versions:  v1 the time after which the session must be renewed (connections.max.reauth.ms); v2
           flexible.
Errors:    SASL_AUTHENTICATION_FAILED, ILLEGAL_SASL_STATE (nobody is logging in here).
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)


def handle(request: SaslAuthenticateRequest, context: Context) -> SaslAuthenticateResponse | Parked:
    """Serves one request; see above."""
    if context.session is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="The listener has no SASL: there is nothing to authenticate.",
        )
    return context.session.authenticate(bytes(request.auth_bytes))

"""The protocol of one connection, without I/O: the order of messages, and matching answers.

    GREETING   ApiVersions was sent. A broker that does not support our version answers 35 in the
               format of version 0, with the versions it supports (KIP-511); then ApiVersions is
               sent again in one of those.
    LOGIN      SaslHandshake and SaslAuthenticate were sent. Skipped if no login is configured.
    OPEN       requests may be sent. Answers arrive in the order of the requests, and each must
               carry the correlation id of the oldest unanswered one. Anything else closes the
               connection.

The shell moves the bytes: it sends what `greet`, `send` and `receive` return, and passes every
frame to `receive`. An answer is a pair (ticket, Reply); the ticket is the request's correlation id.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any, Final, NamedTuple

from fencepost.base.errors import ErrorCode, error_name
from fencepost.base.failures import WireError
from fencepost.base.seams import Buffer
from fencepost.client.failures import AuthenticationFailed, UnsupportedByBroker
from fencepost.client.options import OAUTHBEARER, Login
from fencepost.client.sasl import SaslExchange, sasl_exchange
from fencepost.client.steps import Reply
from fencepost.client.versions import USED, Offer, Range, finalized_features
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import decode_response, encode_request
from fencepost.wire.forms.api_versions import ApiVersionsRequest, ApiVersionsResponse
from fencepost.wire.forms.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from fencepost.wire.forms.sasl_handshake import SaslHandshakeRequest
from fencepost.wire.schema import OUR_CLIENT

SOFTWARE_VERSION: Final = "0.1.0"
_LARGEST_CORRELATION_ID: Final = 2**31 - 1

Chunks = list[Buffer]


class Phase(Enum):
    """The phase of a connection."""

    NEW = "new"
    GREETING = "greeting"
    LOGIN = "login"
    OPEN = "open"


class Expected(NamedTuple):
    """A request without an answer yet."""

    correlation_id: int
    api: ApiKey
    version: int


def versions_request() -> ApiVersionsRequest:
    """Returns the first request of a connection, which any broker answers without a login."""
    return ApiVersionsRequest(
        client_software_name=OUR_CLIENT, client_software_version=SOFTWARE_VERSION
    )


def _refusal(login: Login, form: SaslAuthenticateResponse) -> str:
    """Says what a broker has refused, and what to check."""
    error = error_name(form.error_code)
    if login.mechanism == OAUTHBEARER:
        # Kafka's message says what is wrong with the token, and does not repeat it.
        why = f" ({form.error_message})" if form.error_message else ""
        return (
            f"the broker refused the token with {error}{why}: check its issuer, audience, scope "
            "and time"
        )
    return (
        f"the broker refused {login.mechanism} for user {login.username!r} with {error}: check "
        "sasl.username and sasl.password"
    )


class Conversation:
    """The client side of one connection."""

    def __init__(self, client_id: str, login: Login | None, nonce: bytes) -> None:
        self._client_id = client_id
        self._login = login
        self._nonce = nonce
        self._exchange: SaslExchange | None = None
        self._expected: deque[Expected] = deque()
        self._next_id = 0
        self._offer: Offer | None = None
        self.phase = Phase.NEW
        self.session_lifetime_ms = 0
        """How long the login is valid (KIP-368); 0 if it does not expire."""

    def __repr__(self) -> str:
        return f"<conversation {self.phase.value}, {len(self._expected)} unanswered>"

    @property
    def offer(self) -> Offer:
        """The API versions that the broker supports; known after the greeting."""
        assert self._offer is not None, "the broker has not been greeted"
        return self._offer

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent."""
        return self.phase is Phase.OPEN

    def greet(self) -> Chunks:
        """Returns the bytes of the first request on a new connection."""
        assert self.phase is Phase.NEW
        self.phase = Phase.GREETING
        return self._ask_versions(USED[ApiKey.API_VERSIONS].most)

    def send(self, api: ApiKey, request: Any, at_most: int | None = None) -> tuple[int, Chunks]:
        """Returns a ticket and the request's bytes; UnsupportedByBroker if no version fits."""
        assert self.phase is Phase.OPEN, "requests wait for the greeting and the login"
        return self._write(api, self.offer.pick(api, at_most), request)

    def receive(self, frame: memoryview) -> tuple[Chunks, tuple[int, Reply] | None]:
        """Handles a frame. Returns what to send now, and the answer if it answers a `send`."""
        if not self._expected:
            raise WireError("the broker sent an answer without a request")
        expected = self._expected.popleft()
        correlation_id, form = decode_response(API[expected.api], expected.version, frame)
        if correlation_id != expected.correlation_id:
            raise WireError(
                f"the broker answered request {correlation_id} where {expected.correlation_id} "
                "was due"
            )
        match self.phase:
            case Phase.GREETING:
                return self._on_versions(form), None
            case Phase.LOGIN:
                return self._on_login(form), None
            case _:
                return [], (correlation_id, Reply(form, expected.version))

    def _write(self, api: ApiKey, version: int, request: Any) -> tuple[int, Chunks]:
        correlation_id = self._next_id
        self._next_id = 0 if correlation_id == _LARGEST_CORRELATION_ID else correlation_id + 1
        self._expected.append(Expected(correlation_id, api, version))
        return correlation_id, encode_request(
            API[api], version, correlation_id, self._client_id, request
        )

    # The greeting.

    def _ask_versions(self, version: int) -> Chunks:
        return self._write(ApiKey.API_VERSIONS, version, versions_request())[1]

    def _on_versions(self, form: ApiVersionsResponse) -> Chunks:
        ranges = {key.api_key: Range(key.min_version, key.max_version) for key in form.api_keys}
        if form.error_code == ErrorCode.UNSUPPORTED_VERSION:
            return self._greet_again(ranges.get(ApiKey.API_VERSIONS))
        if form.error_code:
            raise UnsupportedByBroker(f"ApiVersions was refused with {error_name(form.error_code)}")
        features = finalized_features(form.finalized_features_epoch, form.finalized_features)
        self._offer = Offer(ranges, features)
        if self._login is None:
            self.phase = Phase.OPEN
            return []
        return self._log_in(self._login)

    def _greet_again(self, offered: Range | None) -> Chunks:
        known = USED[ApiKey.API_VERSIONS].most
        version = 0 if offered is None else min(offered.most, known - 1)
        if self._next_id > 1 or version < 0:
            raise UnsupportedByBroker(
                "the broker and this client have no version of ApiVersions in common"
            )
        return self._ask_versions(version)

    # The login.

    def _log_in(self, login: Login) -> Chunks:
        self.phase = Phase.LOGIN
        self._exchange = sasl_exchange(login, self._nonce)
        request = SaslHandshakeRequest(mechanism=login.mechanism)
        return self._write(ApiKey.SASL_HANDSHAKE, self.offer.pick(ApiKey.SASL_HANDSHAKE), request)[
            1
        ]

    def _on_login(self, form: Any) -> Chunks:
        assert self._login is not None
        assert self._exchange is not None
        if hasattr(form, "mechanisms"):
            if form.error_code:
                raise AuthenticationFailed(
                    f"the broker does not support {self._login.mechanism}: set sasl.mechanism to "
                    f"one of {', '.join(form.mechanisms)}"
                )
            return self._authenticate(self._exchange.first())
        if form.error_code:
            raise AuthenticationFailed(_refusal(self._login, form))
        response = self._exchange.respond(bytes(form.auth_bytes))
        if response is not None:
            return self._authenticate(response)
        self.session_lifetime_ms = form.session_lifetime_ms
        self.phase = Phase.OPEN
        return []

    def _authenticate(self, auth_bytes: bytes) -> Chunks:
        request = SaslAuthenticateRequest(auth_bytes=auth_bytes)
        version = self.offer.pick(ApiKey.SASL_AUTHENTICATE)
        return self._write(ApiKey.SASL_AUTHENTICATE, version, request)[1]

"""One connection with scripted bytes: versions, login, and matching answers.

The tests play the broker with the same codec.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from fencepost.base.failures import WireError
from fencepost.client.conversation import Chunks, Conversation, Phase
from fencepost.client.failures import AuthenticationFailed, UnsupportedByBroker
from fencepost.client.options import Login
from fencepost.client.secret import Secret
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import decode_request, encode_response, read_request_header
from fencepost.wire.forms.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from fencepost.wire.forms.end_txn import EndTxnRequest, EndTxnResponse
from fencepost.wire.forms.metadata import MetadataRequest
from fencepost.wire.forms.sasl_authenticate import SaslAuthenticateResponse
from fencepost.wire.forms.sasl_handshake import SaslHandshakeResponse

NONCE = bytes(24)


class Broker:
    """The broker's end of the connection."""

    def __init__(self, chunks: Chunks) -> None:
        frame = memoryview(bytearray(b"".join(chunks)))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        self._frame = frame[4:]
        self.header = read_request_header(self._frame)

    @property
    def request(self) -> Any:
        header = self.header
        return decode_request(header.api, header.api_version, self._frame, header.body_offset)

    def answer(
        self, form: Any, *, version: int | None = None, correlation_id: int | None = None
    ) -> memoryview:
        header = self.header
        chosen = header.api_version if version is None else version
        sent_id = header.correlation_id if correlation_id is None else correlation_id
        return memoryview(b"".join(encode_response(header.api, chosen, sent_id, form)))[4:]


def offering(
    *keys: ApiVersion, transaction_version: int = 2, epoch: int = 0
) -> ApiVersionsResponse:
    everything = [
        ApiVersion(api_key=int(a.key), min_version=a.min_version, max_version=a.max_version)
        for a in API.values()
    ]
    feature = FinalizedFeatureKey(name="transaction.version", max_version_level=transaction_version)
    return ApiVersionsResponse(
        api_keys=list(keys) or everything,
        finalized_features_epoch=epoch,
        finalized_features=[feature],
    )


def opened(form: ApiVersionsResponse | None = None) -> Conversation:
    conversation = Conversation("me", None, NONCE)
    broker = Broker(conversation.greet())
    assert conversation.receive(broker.answer(form or offering())) == ([], None)
    return conversation


def test_the_handshake_sends_our_name_and_reads_the_brokers_versions() -> None:
    conversation = Conversation("me", None, NONCE)
    broker = Broker(conversation.greet())
    assert (broker.header.api_key, broker.header.client_id) == (ApiKey.API_VERSIONS, "me")
    assert broker.request.client_software_name == "fencepost"
    conversation.receive(broker.answer(offering()))
    assert conversation.is_open
    assert conversation.offer.transaction_version == 2


def test_a_feature_level_without_an_epoch_is_ignored() -> None:
    assert opened(offering(epoch=-1)).offer.transaction_version == 0


def test_the_handshake_falls_back_to_an_older_brokers_version() -> None:
    conversation = Conversation("me", None, NONCE)
    first = Broker(conversation.greet())
    key = ApiVersion(api_key=18, min_version=0, max_version=2)
    refusal = ApiVersionsResponse(error_code=35, api_keys=[key])
    chunks, _ = conversation.receive(first.answer(refusal, version=0))
    second = Broker(chunks)
    assert second.header.api_version == 2
    conversation.receive(second.answer(offering()))
    assert conversation.is_open


def test_a_broker_that_refuses_every_handshake_version_is_an_error() -> None:
    conversation = Conversation("me", None, NONCE)
    refusal = ApiVersionsResponse(error_code=35)
    chunks, _ = conversation.receive(Broker(conversation.greet()).answer(refusal, version=0))
    with pytest.raises(UnsupportedByBroker, match="no version of ApiVersions"):
        conversation.receive(Broker(chunks).answer(refusal, version=0))


def test_the_highest_common_version_is_sent() -> None:
    conversation = opened(offering(ApiVersion(api_key=26, min_version=1, max_version=3)))
    _, chunks = conversation.send(ApiKey.END_TXN, EndTxnRequest(transactional_id="x"))
    assert Broker(chunks).header.api_version == 3


def test_a_version_can_be_capped_for_the_older_protocol() -> None:
    _, chunks = opened().send(ApiKey.END_TXN, EndTxnRequest(transactional_id="x"), at_most=4)
    assert Broker(chunks).header.api_version == 4


def test_versions_with_topic_ids_are_used_only_for_fetch() -> None:
    conversation = opened()
    assert conversation.offer.pick(ApiKey.PRODUCE) == 12
    assert conversation.offer.pick(ApiKey.FETCH) == 13
    assert conversation.offer.pick(ApiKey.OFFSET_FETCH) == 9


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        (ApiVersion(api_key=3, min_version=0, max_version=1), "does not offer EndTxn"),
        (ApiVersion(api_key=26, min_version=9, max_version=12), "in versions 9 to 12"),
    ],
)
def test_an_api_or_version_that_the_broker_lacks_is_named(key: ApiVersion, complaint: str) -> None:
    with pytest.raises(UnsupportedByBroker, match=complaint):
        opened(offering(key)).send(ApiKey.END_TXN, EndTxnRequest())


def test_responses_are_matched_to_their_requests() -> None:
    conversation = opened()
    first, first_bytes = conversation.send(ApiKey.END_TXN, EndTxnRequest(transactional_id="a"))
    second, second_bytes = conversation.send(ApiKey.END_TXN, EndTxnRequest(transactional_id="b"))
    assert repr(conversation) == "<conversation open, 2 unanswered>"
    for ticket, chunks, code in [(first, first_bytes, 16), (second, second_bytes, 51)]:
        _, answered = conversation.receive(Broker(chunks).answer(EndTxnResponse(error_code=code)))
        assert answered is not None
        assert (answered[0], answered[1].form.error_code) == (ticket, code)


def test_a_response_to_another_request_closes_the_connection() -> None:
    conversation = opened()
    _, chunks = conversation.send(ApiKey.END_TXN, EndTxnRequest(transactional_id="a"))
    with pytest.raises(WireError, match="answered request 99"):
        conversation.receive(Broker(chunks).answer(EndTxnResponse(), correlation_id=99))


def test_a_response_without_a_request_closes_the_connection() -> None:
    with pytest.raises(WireError, match="without a request"):
        opened().receive(memoryview(b"\0\0\0\0"))


@pytest.mark.parametrize("size", [0, 3, 4, 5, 8])
def test_a_truncated_response_closes_the_connection(size: int) -> None:
    conversation = opened()
    _, chunks = conversation.send(ApiKey.METADATA, MetadataRequest(topics=[]))
    answer = Broker(chunks).answer(API[ApiKey.METADATA].response())
    with pytest.raises(WireError):
        conversation.receive(answer[:size])


# The login.


def login(mechanism: str) -> Login:
    return Login(mechanism=mechanism, username="user", password=Secret("pencil"))


def greeted(mechanism: str) -> tuple[Conversation, Broker]:
    conversation = Conversation("me", login(mechanism), NONCE)
    chunks, _ = conversation.receive(Broker(conversation.greet()).answer(offering()))
    broker = Broker(chunks)
    assert broker.request.mechanism == mechanism
    return conversation, broker


def test_a_login_with_plain() -> None:
    conversation, broker = greeted("PLAIN")
    chunks, _ = conversation.receive(broker.answer(SaslHandshakeResponse(mechanisms=["PLAIN"])))
    broker = Broker(chunks)
    assert broker.request.auth_bytes == b"\0user\0pencil"
    assert conversation.phase is Phase.LOGIN
    conversation.receive(broker.answer(SaslAuthenticateResponse(session_lifetime_ms=5000)))
    assert conversation.is_open
    assert conversation.session_lifetime_ms == 5000


def test_a_login_with_scram() -> None:
    """The server side is computed here from the RFC's formulas."""
    conversation, broker = greeted("SCRAM-SHA-256")
    chunks, _ = conversation.receive(broker.answer(SaslHandshakeResponse(mechanisms=["x"])))
    broker = Broker(chunks)
    client_first = broker.request.auth_bytes[3:]
    nonce = client_first.rpartition(b"r=")[2] + b"server"
    server_first = b"r=" + nonce + b",s=" + base64.b64encode(b"salt") + b",i=4096"
    chunks, _ = conversation.receive(
        broker.answer(SaslAuthenticateResponse(auth_bytes=server_first))
    )
    broker = Broker(chunks)
    without_proof, _, proof = broker.request.auth_bytes.rpartition(b",p=")
    signed = b",".join([client_first, server_first, without_proof])
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", b"salt", 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    assert (
        bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) == client_key
    )
    verifier = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
    final = b"v=" + base64.b64encode(verifier)
    conversation.receive(broker.answer(SaslAuthenticateResponse(auth_bytes=final)))
    assert conversation.is_open


def test_an_unsupported_mechanism_fails_with_the_supported_ones() -> None:
    conversation, broker = greeted("PLAIN")
    answer = SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-512"])
    with pytest.raises(AuthenticationFailed, match=r"set sasl\.mechanism to one of SCRAM-SHA-512"):
        conversation.receive(broker.answer(answer))


def test_the_error_of_a_failed_login_does_not_contain_the_password() -> None:
    conversation, broker = greeted("PLAIN")
    chunks, _ = conversation.receive(broker.answer(SaslHandshakeResponse(mechanisms=["PLAIN"])))
    refusal = SaslAuthenticateResponse(error_code=58, error_message="bad pencil")
    with pytest.raises(AuthenticationFailed, match=r"check sasl\.username") as caught:
        conversation.receive(Broker(chunks).answer(refusal))
    assert "pencil" not in str(caught.value)

"""The table of error codes: complete, and right for the codes that exactly-once depends on."""

from __future__ import annotations

import pytest

from fencepost.base.errors import RETRIABLE, ErrorCode
from fencepost.client.failures import OutOfOrderSequence, ProducerFenced, Refused, refusal
from fencepost.client.reactions import REACTIONS, SPECIAL, Reaction, reaction
from fencepost.wire.apis import ApiKey

DIFFERENT_ON_PURPOSE = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    ErrorCode.ELECTION_NOT_NEEDED,
}
"""Retriable in Kafka, for requests that this client never sends: sessions and elections."""


def test_codes_that_kafka_calls_retriable_are_retried() -> None:
    ours = {code for code in ErrorCode if REACTIONS.get(code, Reaction.FATAL).is_retriable}
    assert RETRIABLE - ours == DIFFERENT_ON_PURPOSE
    # A broker that is gone, or a cluster that has replaced all brokers: refresh and retry.
    assert ours - RETRIABLE == {ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REBOOTSTRAP_REQUIRED}


@pytest.mark.parametrize("code", [19, 13, 14, 15, 16, 51])
def test_a_first_write_is_retried_while_its_coordinator_is_unavailable_or_busy(code: int) -> None:
    assert reaction(ApiKey.PRODUCE, code) is Reaction.RETRY


@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.ADD_PARTITIONS_TO_TXN])
@pytest.mark.parametrize("code", [47, 90])
def test_fencing_codes_raise_producer_fenced(api: ApiKey, code: int) -> None:
    assert reaction(api, code) is Reaction.FENCED
    assert isinstance(refusal("EndTxn", code), ProducerFenced)


@pytest.mark.parametrize("code", [45, 48, 49, 59, 53, 10, 87])
def test_codes_that_a_retry_cannot_fix_are_fatal(code: int) -> None:
    assert reaction(ApiKey.PRODUCE, code) is Reaction.FATAL


@pytest.mark.parametrize("code", [-1, 12345])
def test_an_unknown_code_is_fatal(code: int) -> None:
    assert reaction(ApiKey.METADATA, code) is Reaction.FATAL


def test_every_special_rule_differs_from_the_general_one() -> None:
    for (api, code), special in SPECIAL.items():
        assert special is not REACTIONS.get(code, Reaction.FATAL), (api, code)


def test_an_error_names_its_code_and_what_to_do() -> None:
    problem = refusal("Produce", 45, about="t-0")
    assert isinstance(problem, OutOfOrderSequence)
    assert str(problem).startswith(
        "Produce for t-0 was refused with OUT_OF_ORDER_SEQUENCE_NUMBER (45); a second writer"
    )
    assert "error 999 (999)" in str(refusal("Fetch", 999))
    assert type(refusal("Fetch", 999)) is Refused

"""Goal: options of the writers are checked before anything happens."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.spark import TransactionalSink
from fencepost.spark.doors.options import (
    NO_OVERWRITE,
    WRITE_OPTIONS,
    check_mode,
    read_write_options,
)
from fencepost.spark.option_tables import Scope

NEEDED = {"kafka.bootstrap.servers": "localhost:9092"}
STREAM = NEEDED | {"transactionalId": "t"}


def test_names_are_case_insensitive_and_spark_adds_its_own() -> None:
    given = STREAM | {"LEDGERTOPIC": "l", "checkpointLocation": "/c", "queryName": "q"}
    options = read_write_options(given, streaming=True)
    assert (options.ledger_topic, options.checkpoint) == ("l", "/c")
    assert options.ledger().topic == "l"
    assert options.commit_source_offsets is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"transactionalIds": "t"}, "did you mean transactionalId?"),
        ({"kafka.compresion.type": "lz4"}, "did you mean"),
        ({"kafka.transactional.id": "t"}, "cannot be set: it is the option transactionalId"),
        ({"topic": "l", "ledgerTopic": "l"}, "holds the ledger, and rows cannot go there"),
        ({"adopt": "yes"}, "adopt must be true or false"),
        ({"topic": "a b"}, "topic is 'a b', and cannot be a topic. A topic name has ASCII letters"),
        ({"ledgerTopic": ".."}, "ledgerTopic is '..', and cannot be a topic"),
        ({"adopt": "1"}, "adopt must be true or false"),
        ({"mayWriteToSources": ""}, "mayWriteToSources must be true or false"),
        ({"commitSourceOffsets": "maybe"}, "commitSourceOffsets must be auto, true or false"),
        ({"txnVersion": "1"}, "txnVersion is for df.write"),
    ],
)
def test_a_wrong_option_of_a_stream_is_refused_with_what_to_write(
    more: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_write_options(STREAM | more, streaming=True)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"adopt": "false"}, "adopt must be True or False, not 'false'"),
        ({"may_write_to_sources": "false"}, "may_write_to_sources must be True or False"),
        ({"commit_source_offsets": 0}, "commit_source_offsets must be True or False or None"),
        ({"topic": ["a"]}, "topic must be a text or None, not ['a']"),
        ({"topic": "a b"}, "topic is 'a b', and cannot be a topic"),
        ({"ledger_topic": ""}, "ledger_topic is '', and cannot be a topic. A topic needs a name"),
        ({"bootstrap_servers": ["a:1"]}, "such as 'host:9092,host:9092', not ['a:1']"),
        ({"options": "kafka.acks=all"}, "options must be a mapping or None"),
    ],
)
def test_a_wrong_argument_of_the_sink_is_refused(given: dict[str, Any], words: str) -> None:
    needed = {"bootstrap_servers": "localhost:9092", "transactional_id": "t"}
    with pytest.raises(ConfigError) as refused:
        TransactionalSink(**needed | given)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "kafka.bootstrap.servers is needed"),
        (NEEDED | {"txnAppId": "a"}, "txnVersion is missing"),
        (NEEDED | {"txnVersion": "1"}, "txnAppId is missing"),
        (NEEDED | {"txnAppId": "a", "txnVersion": "-1"}, "txnVersion must be at least 0"),
        (NEEDED | {"allowEmptyState": "true"}, "allowEmptyState is for streams"),
        (NEEDED | {"checkpointLocation": "/c"}, "is not an option"),
    ],
)
def test_a_wrong_option_of_a_batch_write_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_write_options(given, streaming=False)
    assert words in str(refused.value)


def test_a_stream_needs_a_transactional_id_and_a_batch_write_does_not() -> None:
    with pytest.raises(ConfigError, match="transactionalId is needed"):
        read_write_options(NEEDED, streaming=True)
    assert read_write_options(NEEDED, streaming=False).transactional_id == ""
    versioned = NEEDED | {"txnAppId": "daily", "txnVersion": "7"}
    options = read_write_options(versioned, streaming=False)
    assert (options.transactional_id, options.app_id, options.version) == ("daily", "daily", 7)
    options = read_write_options(versioned | {"transactionalId": "t"}, streaming=False)
    assert (options.transactional_id, options.app_id) == ("t", "daily")


def test_every_option_of_the_table_is_accepted_by_one_of_the_writers() -> None:
    values = {"txnVersion": "1", "adopt": "true", "allowEmptyState": "true"}
    values |= {"commitSourceOffsets": "true", "txnAppId": "a", "mayWriteToSources": "true"}
    for streaming, other in ((True, Scope.BATCH), (False, Scope.STREAM)):
        names = [option.name for option in WRITE_OPTIONS if option.scope is not other]
        read_write_options(
            NEEDED | {name: values.get(name, "x" + name) for name in names}, streaming=streaming
        )


def test_overwriting_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError) as refused:
        check_mode(overwrite=True)
    assert str(refused.value) == NO_OVERWRITE
    check_mode(overwrite=False)

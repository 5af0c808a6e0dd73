"""A name that does not exist: one sentence that says so, and exit code 1, whatever the command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fencepost
from fencepost.cli import main
from fencepost.cli.naming import unknown_id
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.forensics.history.facts import IdFacts
from tests.cli.running import Commands
from tests.forensics import situations
from tests.forensics.conftest import HURRY

NO_ID = "There is no transactional id 'refunds-7'"
NO_TOPIC = "There is no topic 'paymnts'; did you mean payments? `fencepost topic list`"
NO_PARTITION = "Topic 'payments' has no partition 9; its partitions are 0 to 1."
NO_GROUP = "There is no group 'nobody'"

SAID = {
    "txn why refunds-7": NO_ID,
    "txn why refunds-7 --json": NO_ID,
    "txn why refunds-7 --producer-id 4 --epoch 1": NO_ID,
    "txn why refunds-7 --partition payments:0": NO_ID,
    "txn timeline refunds-7": NO_ID,
    "txn describe refunds-7": NO_ID,
    "txn fence refunds-7 --yes": "No coordinator knows the transactional id 'refunds-7'",
    "txn abort refunds-7 --yes": "No coordinator knows the transactional id 'refunds-7'",
    "txn commit refunds-7 --yes": "No coordinator knows",
    "txn producers paymnts": NO_TOPIC,
    "txn producers paymnts:0": NO_TOPIC,
    "txn producers payments:9": NO_PARTITION,
    "txn find-hanging paymnts": NO_TOPIC,
    "txn abort paymnts:0 --start-offset 0 --yes": NO_TOPIC,
    "txn abort payments:9 --start-offset 0 --yes": NO_PARTITION,
    "pins paymnts": NO_TOPIC,
    "pins not/a/topic": "There is no topic 'not/a/topic'",
    "records paymnts:0": NO_TOPIC,
    "records payments:9": NO_PARTITION,
    "topic describe paymnts": NO_TOPIC,
    "topic delete paymnts --yes": NO_TOPIC,
    "topic consume paymnts": NO_TOPIC,
    "topic produce paymnts /dev/null": NO_TOPIC,
    "config get --topic paymnts": NO_TOPIC,
    "cluster move paymnts:0 --to 1": NO_TOPIC,
    "cluster move payments:9 --to 1": NO_PARTITION,
    "lag nobody": NO_GROUP,
    "group describe nobody": NO_GROUP,
    "group delete nobody --yes": NO_GROUP,
    "ledger show refunds-7": "has no record of 'refunds-7'",
}


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with fencepost.Broker() as broker:
        with connect(broker.bootstrap_servers) as cluster:
            cluster.create_topics([NewTopic("payments", partitions=2)])
            cluster.init_producer_id("orders-1")
        yield broker.bootstrap_servers


@pytest.mark.parametrize("command", SAID)
def test_an_unknown_name_is_one_sentence(
    servers: str, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert SAID[command] in Commands(servers, capsys).refusal(*command.split())
    assert capsys.readouterr().out == ""


def test_an_unknown_id_is_reported_with_what_was_read_and_how_long_ids_are_kept(
    servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = Commands(servers, capsys).refusal("txn", "why", "order-1")
    assert said.startswith("There is no transactional id 'order-1': its coordinator does not have")
    assert "__transaction_state-" in said
    assert "It was never used on this cluster, or it has expired" in said
    assert "after 7 d" in said
    assert said.endswith("; did you mean orders-1?")


def test_an_id_that_expired_is_explained_while_its_records_are_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with fencepost.Broker(config={**HURRY, "transactional.id.expiration.ms": 300}) as broker:
        found = situations.expired(broker.bootstrap_servers)
        arguments = ["--bootstrap-servers", broker.bootstrap_servers]
        assert main.run(["txn", "why", found.transactional_id, *arguments]) == 0
        assert "proven: expired id" in capsys.readouterr().out
        assert main.run(["txn", "describe", found.transactional_id, *arguments]) == 1
        said = capsys.readouterr().err
    assert "its coordinator removed it at 20" in said
    assert "unused ids are removed after 300 ms" in said


def test_an_id_that_this_user_may_not_see_is_not_called_unknown(servers: str) -> None:
    denied = ["DescribeTransactions was refused", "This user may not read __transaction_state."]
    facts = IdFacts("refunds-7", None, None, denied, is_hidden=True)
    with connect(servers) as cluster:
        assert str(unknown_id(cluster, facts)) == (
            "Whether the transactional id 'refunds-7' exists is hidden from this user. "
            "DescribeTransactions was refused. This user may not read __transaction_state."
        )

"""`fencepost txn why` and `txn timeline` on every prepared situation, on a fencepost broker."""

from __future__ import annotations

import json
from typing import Any

import confluent_kafka
import pytest
from typer.testing import CliRunner

import fencepost
from fencepost.cli.app import app
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.routes import CoordinatorKey, CoordinatorKind
from fencepost.forensics.history import facts
from fencepost.forensics.history.rules import Cause, Certainty
from fencepost.forensics.history.transaction_log import NoTransactionLogError, read_history
from fencepost.wire.apis import ApiKey
from tests.broker.raw import ClosedError, RawClient
from tests.forensics import situations
from tests.forensics.expectations import EXPECTED, arguments_of, check, prepare
from tests.forensics.situations import end_txn_request
from tests.transactions.protocol import TV1
from tests.transactions.wire import WireProducer, retried


def run(servers: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--bootstrap-servers", servers])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.mark.parametrize(("name", "protocol"), EXPECTED, ids=str)
def test_why_finds_the_cause_of(name: str, protocol: int, servers: str) -> None:
    found = prepare(name, servers, protocol)
    said = run(servers, "txn", "why", found.transactional_id, *arguments_of(found), "--json")
    check(said, found, EXPECTED[name, protocol])


@pytest.mark.parametrize("protocol", [1, 2])
def test_why_finds_that_an_id_has_expired(protocol: int, forgetful_servers: str) -> None:
    found = situations.expired(forgetful_servers, protocol)
    said = run(
        forgetful_servers, "txn", "why", found.transactional_id, *arguments_of(found), "--json"
    )
    check(said, found, (Cause.EXPIRED, Certainty.PROVEN))


def test_why_without_a_producer_explains_the_last_one_that_lost_the_id(servers: str) -> None:
    found = situations.timed_out(servers, 1)
    with connect(servers) as cluster:
        cluster.init_producer_id(found.transactional_id)
    row = json.loads(run(servers, "txn", "why", found.transactional_id, "--json"))
    # Whether the restart came soon enough to be the cause depends on the moment.
    assert row["cause"] in ("timeout", "newer instance")
    assert (row["producer_id"], row["producer_epoch"]) == (found.identity.producer_id, 0)


def test_librdkafka_names_a_newer_instance_after_a_timeout_too(servers: str) -> None:
    """What `client_probably_said` warns of."""
    with connect(servers) as cluster:
        cluster.create_topics([NewTopic("late", 1)])
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": "late",
                "transaction.timeout.ms": situations.SHORT_TIMEOUT_MS,
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("late", b"v")
        producer.flush(30)
        situations.await_state(cluster, "late", "CompleteAbort")
    with pytest.raises(confluent_kafka.KafkaException) as said:
        producer.commit_transaction(30)
    row = json.loads(run(servers, "txn", "why", "late", "--json"))
    assert (row["cause"], row["certainty"]) == ("timeout", "proven")
    misleading = "This instance has been fenced by a newer instance"
    assert misleading in str(said.value)
    assert misleading in row["client_probably_said"]


# -- without the right to read __transaction_state ------------------------------------------------


@pytest.fixture
def no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NoTransactionLogError("This user may not read __transaction_state: grant READ.")

    monkeypatch.setattr(facts, "read_history", refuse)


@pytest.mark.usefixtures("no_read")
@pytest.mark.parametrize(
    ("name", "protocol", "cause"),
    [
        ("timed_out", 2, Cause.TIMEOUT),
        ("newer_instance", 2, Cause.NEWER_INSTANCE),
        ("aborted_by_client", 1, Cause.CLIENT_ABORT),
        ("lost_answer", 2, Cause.COMMITTED),
    ],
)
def test_why_works_from_the_partitions_without_the_log(
    name: str, protocol: int, cause: Cause, servers: str
) -> None:
    found = prepare(name, servers, protocol)
    place = f"{found.partition.topic}:0"
    row = json.loads(
        run(
            servers,
            *("txn", "why", found.transactional_id, *arguments_of(found)),
            *("--partition", place, "--json"),
        )
    )
    assert (row["cause"], row["certainty"]) == (cause.value, "likely"), row
    assert any("grant READ" in note for note in row["notes"])
    assert "READ on __transaction_state" in row["would_prove_more"] or name == "timed_out"


@pytest.mark.usefixtures("no_read")
def test_the_timeline_needs_the_log_and_says_so(servers: str) -> None:
    with pytest.raises(fencepost.base.failures.FencepostError, match="grant READ"):
        run(servers, "txn", "timeline", "refunds")


# -- the timeline ---------------------------------------------------------------------------------


def timeline(servers: str, transactional_id: str, *more: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(
        run(servers, "txn", "timeline", transactional_id, "--json", *more)
    )
    return row


@pytest.mark.parametrize("protocol", [1, 2])
def test_the_timeline_has_every_state_and_the_marker_of_each_end(
    protocol: int, servers: str
) -> None:
    found = situations.timed_out(servers, protocol)
    row = timeline(servers, found.transactional_id)
    steps = row["steps"]
    assert [step["state"] for step in steps] == [
        "Empty",
        "Ongoing",
        "PrepareAbort",
        "CompleteAbort",
    ]
    assert [step["producer_epoch"] for step in steps] == [0, 0, 1, 1]
    assert steps[1]["added"] == [str(found.partition)]
    assert steps[2]["since_previous_ms"] >= situations.SHORT_TIMEOUT_MS
    assert "its timeout was 1,500 ms" in steps[2]["notes"][0]
    (marker,) = steps[2]["markers"]
    assert (marker["partition"], marker["outcome"], marker["offset"]) == (
        str(found.partition),
        "abort",
        2,
    )
    assert marker["producer_epoch"] == 1
    # Only the records around the marker were read, and the transaction began long before.
    assert (marker["first_offset"], marker["is_first_offset_exact"]) == (None, False)
    assert row["is_complete"]
    assert row["stray_markers"] == []


def test_a_marker_that_no_record_explains_is_shown_as_such(servers: str) -> None:
    found = situations.aborted_by_markers(servers)
    row = timeline(servers, found.transactional_id)
    (stray,) = row["stray_markers"]
    assert (stray["partition"], stray["outcome"]) == (str(found.partition), "abort")


def test_a_topic_that_was_deleted_is_said_and_the_rest_is_shown(servers: str) -> None:
    found = situations.committed(servers)
    with connect(servers) as cluster:
        cluster.delete_topics([found.partition.topic])
    row = timeline(servers, found.transactional_id)
    assert len(row["steps"]) == 4
    (problem,) = row["problems"]
    assert "does not exist any more" in problem


def test_only_the_last_states_are_shown_if_asked(servers: str) -> None:
    found = situations.aborted_by_client(servers, 2)
    row = timeline(servers, found.transactional_id, "--last", "3")
    assert [step["state"] for step in row["steps"]] == [
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
    ]
    assert row["hidden_steps"] == 4


def test_rapid_transactions_of_one_epoch_each_get_their_own_marker(servers: str) -> None:
    """TV1: producer id, epoch and outcome are the same; only order and time tell them apart."""
    with connect(servers) as cluster:
        cluster.create_topics([NewTopic("rapid", 1)])
    producer = WireProducer(RawClient(servers), "rapid", TV1).initialise()
    for number in range(8):
        producer.send("rapid", b"v")
        retried(producer.client, lambda: producer.end(commit=number % 2 == 0))  # noqa: B023
    row = timeline(servers, "rapid")
    ends = [step for step in row["steps"] if step["state"].startswith("Prepare")]
    offsets = [marker["offset"] for step in ends for marker in step["markers"]]
    assert sorted(offsets) == list(range(1, 16, 2))
    assert all(len(step["markers"]) == 1 for step in ends)
    assert row["stray_markers"] == []


# -- what a broker of its own is needed for ------------------------------------------------------


def test_what_compaction_took_is_said_and_the_rest_is_judged() -> None:
    config = {
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.segment.bytes": 20_000,
        "log.cleaner.backoff.ms": 100,
        "log.cleaner.min.cleanable.ratio": 0.01,
    }
    with fencepost.Broker(config=config) as broker, connect(broker.bootstrap_servers) as cluster:
        servers = broker.bootstrap_servers
        found = situations.begin(cluster, 2)
        identity = found.identity

        def is_compacted() -> bool:
            nonlocal identity
            for commit in (True, False):
                identity = cluster.end_txn(identity, commit=commit)
                situations.write(cluster, identity, found.partition)
            return read_history(cluster, found.transactional_id).removed > 0

        situations.await_until(is_compacted, "compaction")
        row = timeline(servers, found.transactional_id, "--last", "100000")
        assert not row["is_complete"]
        assert "Compaction of __transaction_state took what came before" in row["lost"]
        old = ["--producer-id", str(found.identity.producer_id), "--epoch", "0"]
        why = json.loads(run(servers, "txn", "why", found.transactional_id, *old, "--json"))
        assert why["certainty"] == "cannot tell"
        assert any("Compaction of" in note for note in why["notes"])


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_reply_that_the_broker_drops_is_recognised(protocol: int) -> None:
    """EndTxn takes effect, its reply is lost, and the client does not retry."""
    with fencepost.Broker() as broker, connect(broker.bootstrap_servers) as cluster:
        found = situations.begin(cluster, protocol)
        broker.call(lambda node: node.faults.drop(ApiKey.END_TXN, effect=True))
        client = RawClient(broker.bootstrap_servers)
        request = end_txn_request(found)
        with pytest.raises(ClosedError):
            client.call(ApiKey.END_TXN, situations.TV[protocol].end_txn, request)
        situations.await_state(cluster, found.transactional_id, "CompleteCommit")
        said = run(
            broker.bootstrap_servers,
            *("txn", "why", found.transactional_id, *arguments_of(found), "--json"),
        )
        check(said, found, (Cause.COMMITTED, Certainty.PROVEN))


# -- a coordinator that moved ---------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_coordinator_that_moved_is_seen_and_not_blamed(protocol: int) -> None:
    with fencepost.Cluster(brokers=2) as brokers, connect(brokers.bootstrap_servers) as cluster:
        found = situations.begin(cluster, protocol)
        key = CoordinatorKey(CoordinatorKind.TRANSACTION, found.transactional_id)
        old = cluster.find_coordinator(key)
        cluster.move_coordinator(key, 3 - old)
        cluster.end_txn(found.identity, commit=False)
        situations.await_state(cluster, found.transactional_id, "CompleteAbort")
        row = timeline(brokers.bootstrap_servers, found.transactional_id)
        notes = [note for step in row["steps"] for note in step["notes"]]
        assert any("the coordinator moved" in note for note in notes)
        said = run(
            brokers.bootstrap_servers,
            *("txn", "why", found.transactional_id, *arguments_of(found), "--json"),
        )
        why = json.loads(said)
        certainty = "proven" if protocol == 1 else "likely"
        assert (why["cause"], why["certainty"]) == ("the producer's own abort", certainty)


def test_a_coordinator_that_aborts_what_it_finds_open_is_named() -> None:
    config = {"transaction.recovery.ongoing": "abort"}
    with (
        fencepost.Cluster(brokers=2, config=config) as brokers,
        connect(brokers.bootstrap_servers) as cluster,
    ):
        found = situations.begin(cluster, 1)
        key = CoordinatorKey(CoordinatorKind.TRANSACTION, found.transactional_id)
        cluster.move_coordinator(key, 3 - cluster.find_coordinator(key))
        situations.await_state(cluster, found.transactional_id, "CompleteAbort")
        said = run(
            brokers.bootstrap_servers,
            *("txn", "why", found.transactional_id, *arguments_of(found), "--json"),
        )
        check(said, found, (Cause.COORDINATOR_MOVED, Certainty.LIKELY))

"""`fencepost txn why` on every prepared situation, on a fencepost broker."""

from __future__ import annotations

import json

import confluent_kafka
import pytest

import fencepost
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.routes import CoordinatorKey, CoordinatorKind
from fencepost.forensics.history.rules import Cause, Certainty
from fencepost.forensics.history.transaction_log import read_history
from fencepost.wire.apis import ApiKey
from tests.broker.raw import ClosedError, RawClient
from tests.forensics import situations
from tests.forensics.expectations import EXPECTED, arguments_of, check, prepare
from tests.forensics.running import run, timeline
from tests.forensics.situations import end_txn_request


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


@pytest.mark.parametrize("action", ["abort", "commit", "fence"])
@pytest.mark.parametrize("with_producer", [True, False])
def test_why_names_the_operator_who_ended_a_transaction(
    action: str, with_producer: bool, servers: str
) -> None:
    found = situations.ended_by_operator(servers, action)
    arguments = arguments_of(found) if with_producer else []
    said = run(servers, "txn", "why", found.transactional_id, *arguments, "--json")
    check(said, found, (Cause.ADMINISTRATOR, Certainty.PROVEN))
    operator = f"User:ANONYMOUS with fencepost-txn-{action} from 127.0.0.1"
    assert operator in json.loads(said)["because"]
    steps = timeline(servers, found.transactional_id)["steps"]
    ends = [each for each in steps if each["administrator"] is not None]
    assert {each["administrator"] for each in ends} == {operator}
    assert ends == steps[2:]  # Also the last one, which is all that compaction leaves.
    assert [each for each in steps if f"by an administrator: {operator}" in each["notes"]] == [
        ends[0]
    ]


@pytest.mark.parametrize("action", ["abort", "commit"])
def test_why_names_the_operator_who_ended_a_transaction_of_tv1(action: str) -> None:
    """The epoch stays: only the record tells the operator from the producer."""
    with (
        fencepost.Broker() as broker,
        connect(broker.bootstrap_servers, {"client.id": "shop"}) as cluster,
    ):
        found = situations.begin(cluster, 1)
        with connect(
            broker.bootstrap_servers, {"client.id": f"fencepost-txn-{action}"}
        ) as operator:
            operator.end_txn(found.identity, commit=action == "commit")
        said = run(broker.bootstrap_servers, "txn", "why", found.transactional_id, "--json")
        check(said, found, (Cause.ADMINISTRATOR, Certainty.PROVEN))


def test_why_names_the_operator_after_a_restart_of_the_broker() -> None:
    with fencepost.Broker() as broker:
        found = situations.ended_by_operator(broker.bootstrap_servers, "commit")
        broker.restart()
        said = run(broker.bootstrap_servers, "txn", "why", found.transactional_id, "--json")
        check(said, found, (Cause.ADMINISTRATOR, Certainty.PROVEN))


def test_a_client_id_of_the_user_does_not_hide_the_operator(servers: str) -> None:
    with connect(servers) as cluster:
        found = situations.begin(cluster, 2)
        abort = ("txn", "abort", found.transactional_id, "--yes", "--client-config", "client.id=x")
        run(servers, *abort)
    said = run(servers, "txn", "why", found.transactional_id, "--json")
    check(said, found, (Cause.ADMINISTRATOR, Certainty.PROVEN))


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

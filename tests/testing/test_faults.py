"""Faults in the words of users: what happens to which request, how often, what a test learns."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import ClientError
from fencepost.records.opened import Record
from fencepost.testing.faults import Request, UnfiredFault
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.heartbeat import HeartbeatRequest
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.raw import RawClient
from tests.broker.requests import batch_of, create_topic, produce_request

METADATA = MetadataRequest(topics=[])
VERSION = 9


@pytest.fixture
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker() as started:
        yield started


@pytest.fixture
def client(broker: fencepost.Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as connected:
        yield connected


def heartbeat(client: RawClient, group: str = "g") -> int:
    """The error code of a heartbeat; without faults UNKNOWN_MEMBER_ID (25)."""
    reply = client.call(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id=group, member_id="m"))
    code: int = reply.error_code
    return code


HEALTHY = 25


@pytest.fixture
def group(client: RawClient) -> None:
    """Loads the coordinator."""
    from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest

    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    client.call(ApiKey.FIND_COORDINATOR, 4, request)
    while heartbeat(client) != HEALTHY:
        pass


# -- how often -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trigger", "failed"),
    [
        (lambda fault: fault, [1]),
        (lambda fault: fault.once(), [1]),
        (lambda fault: fault.times(3), [1, 2, 3]),
        (lambda fault: fault.on_call(3), [3]),
        (lambda fault: fault.always(), [1, 2, 3, 4, 5, 6]),
        (lambda fault: fault.with_probability(1e-9, seed=1).on_call(3).times(2), [1, 2]),
    ],
    ids=["nothing", "once", "times", "on_call", "always", "the last one"],
)
@pytest.mark.usefixtures("group")
def test_a_trigger_says_which_of_the_requests_fail(
    broker: fencepost.Broker, client: RawClient, trigger: Any, failed: list[int]
) -> None:
    fault = trigger(broker.faults.on("Heartbeat").fail("REBALANCE_IN_PROGRESS"))
    outcomes = [heartbeat(client) for _ in range(6)]
    assert [number for number, code in enumerate(outcomes, 1) if code == 27] == failed
    assert set(outcomes) <= {27, HEALTHY}
    assert fault.fired == len(failed) == len(broker.faults.fired)
    broker.faults.check()


@pytest.mark.usefixtures("group")
def test_a_seed_repeats_which_requests_fail(broker: fencepost.Broker, client: RawClient) -> None:
    runs = []
    for _ in range(2):
        fault = broker.faults.on("Heartbeat").fail("REBALANCE_IN_PROGRESS")
        fault.with_probability(0.5, seed=7)
        runs.append([heartbeat(client) for _ in range(20)])
        fault.remove()
    assert runs[0] == runs[1]
    assert set(runs[0]) == {27, HEALTHY}
    assert heartbeat(client) == HEALTHY


@pytest.mark.usefixtures("group")
def test_faults_that_are_due_at_one_request_follow_each_other(
    broker: fencepost.Broker, client: RawClient
) -> None:
    broker.faults.on("Heartbeat").fail("REBALANCE_IN_PROGRESS")
    broker.faults.on("Heartbeat").fail("ILLEGAL_GENERATION")
    broker.faults.on("Heartbeat").fail("NOT_COORDINATOR").on_call(3)
    assert [heartbeat(client) for _ in range(4)] == [27, 22, 16, HEALTHY]


# -- which requests --------------------------------------------------------------------------------


@pytest.mark.usefixtures("group")
def test_a_fault_applies_to_the_requests_that_match_all_that_is_given(
    broker: fencepost.Broker, client: RawClient
) -> None:
    faults = broker.faults
    faults.on("HEARTBEAT", group="other").fail("NOT_COORDINATOR")
    faults.on("Heartbeat", group="g", client_id="nobody").fail("NOT_COORDINATOR").optional()
    faults.on("Heartbeat", group="g", version=3).fail("NOT_COORDINATOR").optional()
    assert heartbeat(client) == HEALTHY
    assert heartbeat(client, "other") == 16
    assert [(each.api, each.fault, each.version, each.client_id) for each in faults.fired] == [
        ("Heartbeat", "fail('NOT_COORDINATOR')", 4, "raw")
    ]
    faults.check()


def test_topics_match_by_name_and_by_id(broker: fencepost.Broker, client: RawClient) -> None:
    for name in ("chosen", "spared"):
        create_topic(client, name)
    topics = client.call(ApiKey.METADATA, 12, MetadataRequest(topics=None)).topics
    ids = {each.name: each.topic_id for each in topics}
    faults = broker.faults
    faults.on("Metadata", topic="chosen").fail("LEADER_NOT_AVAILABLE").times(2)

    def code(version: int, **topic: Any) -> int:
        request = MetadataRequest(topics=[MetadataRequestTopic(**topic)])
        found: int = client.call(ApiKey.METADATA, version, request).topics[0].error_code
        return found

    assert code(9, name="spared") == 0
    assert code(9, name="chosen") == 5
    assert code(12, name=None, topic_id=ids["spared"]) == 0
    assert code(12, name=None, topic_id=ids["chosen"]) == 5


def test_transactional_ids_match_wherever_a_request_names_them(broker: fencepost.Broker) -> None:
    with connect(broker.bootstrap_servers) as client:
        client.create_topics([_topic("t")])
        chosen = broker.faults.on("EndTxn", transactional_id="chosen").fail("INVALID_TXN_STATE")
        found = broker.faults.on("FindCoordinator", transactional_id="chosen").delay(0)
        looked = broker.faults.on("DescribeTransactions", transactional_id="chosen").delay(0)
        commit(client, "spared")
        assert chosen.fired == found.fired == 0
        with pytest.raises(ClientError, match="INVALID_TXN_STATE"):
            commit(client, "chosen")
        client.describe_transactions(["chosen"])
        assert (chosen.fired, found.fired, looked.fired) == (1, 1, 1)


def _topic(name: str) -> Any:
    from fencepost.client.admin import NewTopic

    return NewTopic(name, 1)


def commit(client: Cluster, transactional_id: str, value: bytes = b"x") -> None:
    identity = client.init_producer_id(transactional_id)
    with client.writer(identity) as writer:
        writer.write_records(TopicPartition("t", 0), [Record(0, 0, b"k", value, ())])
        writer.flush()
    client.end_txn(identity, commit=True)


# -- what happens ----------------------------------------------------------------------------------


def test_a_lost_reply_to_a_commit_is_a_durable_commit(broker: fencepost.Broker) -> None:
    with connect(broker.bootstrap_servers) as client:
        client.create_topics([_topic("t")])
        broker.faults.on("EndTxn").lose_reply()
        commit(client, "id")  # Retries, and learns that it has committed.
        records = list(client.records(TopicPartition("t", 0), isolation="read_committed"))
    assert [each.value for each in records] == [b"x"]
    broker.faults.check()


@pytest.mark.parametrize("lose", ["lose_request", "lose_reply"])
def test_a_broker_that_hangs_answers_nothing_more_on_that_connection(
    broker: fencepost.Broker, client: RawClient, lose: str
) -> None:
    getattr(broker.faults.on("CreateTopics"), lose)(disconnect=False)
    from fencepost.wire.forms.create_topics import CreatableTopic, CreateTopicsRequest

    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    client.send(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic]))
    client.send(ApiKey.METADATA, VERSION, METADATA)
    broker.faults.on("Metadata").delay(0).optional()
    with RawClient(broker.bootstrap_servers) as other:
        named = MetadataRequest(
            topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False
        )
        code = other.call(ApiKey.METADATA, VERSION, named).topics[0].error_code
    assert code == (3 if lose == "lose_request" else 0)
    client._socket.settimeout(0.05)
    with pytest.raises(socket.timeout):
        client.read_frame()


def test_a_held_request_takes_effect_when_it_is_released(
    broker: fencepost.Broker, client: RawClient
) -> None:
    fault = broker.faults.on("Metadata").hold()
    waiting = client.send(ApiKey.METADATA, VERSION, METADATA)
    fault.wait()
    assert fault.held == 1
    client._socket.settimeout(0.05)
    with pytest.raises(socket.timeout):
        client.read_frame()
    client._socket.settimeout(10)
    fault.release()
    assert client.reply(ApiKey.METADATA, VERSION, waiting).brokers
    assert fault.held == 0
    fault.release()  # Nothing is held: no harm.


def test_what_a_stopped_broker_held_is_not_released_into_the_next_one(
    broker: fencepost.Broker, client: RawClient
) -> None:
    fault = broker.faults.on("Metadata").hold()
    client.send(ApiKey.METADATA, VERSION, METADATA)
    fault.wait()
    broker.restart()
    assert fault.held == 0
    fault.release()
    with RawClient(broker.bootstrap_servers) as again:
        assert again.call(ApiKey.METADATA, VERSION, METADATA).brokers


def test_a_throttled_reply_says_so_and_the_next_request_waits(
    broker: fencepost.Broker, client: RawClient
) -> None:
    broker.faults.on("Metadata").throttle(50)
    first = client.call(ApiKey.METADATA, VERSION, METADATA)
    assert first.throttle_time_ms == 50
    assert first.brokers
    # The connection is held, not lost.
    assert client.call(ApiKey.METADATA, VERSION, METADATA).throttle_time_ms == 0


@pytest.mark.usefixtures("group")
def test_a_function_sees_the_request_and_lets_it_pass_fails_it_or_answers(
    broker: fencepost.Broker, client: RawClient
) -> None:
    answers: list[Any] = []
    seen: list[Request] = []

    def decide(request: Request) -> Any:
        seen.append(request)
        answer = answers.pop(0)
        return answer(request) if callable(answer) else answer

    broker.faults.on("Heartbeat").do(decide).always()
    answers += [None, "NOT_COORDINATOR", lambda request: request.reply(error_code=82)]
    assert [heartbeat(client) for _ in range(3)] == [HEALTHY, 16, 82]
    assert [(each.api, each.version, each.body.group_id) for each in seen] == [
        ("Heartbeat", 4, "g")
    ] * 3


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("NO_SUCH", "no error 'NO_SUCH'"),
        (17, "returned 17: return None"),
        (AssertionError("of the test"), "of the test"),
    ],
)
@pytest.mark.usefixtures("group")
def test_a_function_that_fails_lets_the_request_pass_and_fails_the_test(
    broker: fencepost.Broker, client: RawClient, answer: Any, sentence: str
) -> None:
    def decide(request: Request) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    broker.faults.on("Heartbeat").do(decide)
    assert heartbeat(client) == HEALTHY
    with pytest.raises((FencepostError, AssertionError), match=sentence):
        broker.faults.check()
    broker.faults.check()  # Raised once.


@pytest.mark.parametrize(
    "fields", [{"error_code": "X"}, {"error_code": 2**40}, {"throttle_time_ms": None}]
)
@pytest.mark.usefixtures("group")
def test_a_reply_that_cannot_be_written_fails_the_test_and_not_the_broker(
    broker: fencepost.Broker, client: RawClient, fields: dict[str, Any]
) -> None:
    broker.faults.on("Heartbeat").do(lambda request: request.reply(**fields))
    assert heartbeat(client) == HEALTHY
    with pytest.raises(FencepostError, match="cannot be written: HeartbeatResponse v4"):
        broker.faults.check()
    assert heartbeat(client) == HEALTHY


def test_a_function_cannot_answer_a_producer_that_waits_for_no_reply(
    broker: fencepost.Broker, client: RawClient
) -> None:
    create_topic(client, "t")
    broker.faults.on("Produce").do(lambda request: request.reply())
    client.send(ApiKey.PRODUCE, 7, produce_request("t", batch_of(b"x"), acks=0))
    assert client.call(ApiKey.METADATA, VERSION, METADATA).brokers, "the next reply is its own"
    with pytest.raises(FencepostError, match=r"waits for no reply .acks=0."):
        broker.faults.check()


def test_faults_of_many_threads_fire_exactly_as_often_as_they_should(
    broker: fencepost.Broker,
) -> None:
    named = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    codes: list[int] = []

    def arm_and_send() -> None:
        broker.faults.on("Metadata").fail("LEADER_NOT_AVAILABLE").times(2)
        with RawClient(broker.bootstrap_servers) as client:
            for _ in range(5):
                codes.append(client.call(ApiKey.METADATA, 1, named).topics[0].error_code)

    threads = [threading.Thread(target=arm_and_send) for _ in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(codes) == 100
    assert len(broker.faults.fired) == 40 == codes.count(5)
    assert broker.faults.pending == []


def test_a_throttled_first_of_several_requests_does_not_change_their_order(
    broker: fencepost.Broker, client: RawClient
) -> None:
    broker.faults.on("Metadata").throttle(20)
    sent = [client.send(ApiKey.METADATA, VERSION, METADATA) for _ in range(5)]
    for number in sent:
        assert client.reply(ApiKey.METADATA, VERSION, number).brokers


# -- crashes ---------------------------------------------------------------------------------------


def test_a_crash_leaves_what_was_acknowledged_and_restart_recovers_it(
    broker: fencepost.Broker,
) -> None:
    with connect(broker.bootstrap_servers) as client:
        client.create_topics([_topic("t")])
        commit(client, "id")
        broker.crash()
        with pytest.raises(FencepostError, match=r"has crashed.*restart"):
            assert broker.bootstrap_servers
        broker.restart()
        assert len(list(client.records(TopicPartition("t", 0)))) == 1
        commit(client, "id")
        assert len(list(client.records(TopicPartition("t", 0)))) == 2


def test_a_crash_is_not_a_clean_stop(broker: fencepost.Broker) -> None:
    for stop, is_clean in ((broker.crash, False), (broker.stop, True)):
        stop()
        broker.start()
        assert broker.call(lambda node: node._is_after_crash) is not is_clean


def test_a_crashed_broker_can_be_closed_and_crashed_again(broker: fencepost.Broker) -> None:
    broker.crash()
    with pytest.raises(FencepostError, match="has crashed"):
        broker.crash()
    broker.close()
    broker.start()
    assert broker.bootstrap_servers


def test_a_broker_recovers_from_a_crash_at_every_step_of_a_commit(
    broker: fencepost.Broker,
) -> None:
    with connect(broker.bootstrap_servers) as client:
        client.create_topics([_topic("t")])
        steps = [each for each in broker.faults.steps if each.startswith("commit.")]
        assert len(steps) == 7
        for number, step in enumerate(steps, 1):
            broker.faults.at(step).crash(restart=True)
            try:
                commit(client, "id", b"%d" % number)
            except ClientError:
                # Recovered before the decision was written: the transaction is still open.
                assert step == "commit.before-prepare"
            assert len(broker.faults.fired) == number
        broker.faults.check()
        records = client.records(TopicPartition("t", 0), isolation="read_committed")
        values = [each.value for each in records]
    assert values[-6:] == [b"2", b"3", b"4", b"5", b"6", b"7"]


def test_a_request_can_crash_the_broker(broker: fencepost.Broker) -> None:
    with connect(broker.bootstrap_servers) as client:
        client.create_topics([_topic("t")])
        fault = broker.faults.on("EndTxn").crash()
        committing = threading.Thread(target=commit, args=(client, "id"))
        committing.start()
        fault.wait()
        with pytest.raises(FencepostError, match="has crashed"):
            assert broker.bootstrap_servers
        broker.restart()
        committing.join()
        assert len(list(client.records(TopicPartition("t", 0), isolation="read_committed"))) == 1


def test_what_is_asked_of_a_broker_that_recovers_by_itself_waits(broker: fencepost.Broker) -> None:
    broker.create_topic("t")
    with connect(broker.bootstrap_servers) as client:
        for _ in range(3):
            fault = broker.faults.on("EndTxn").crash(restart=True)
            committing = threading.Thread(target=commit, args=(client, "id"))
            committing.start()
            fault.wait()
            assert [each.value for each in broker.records("t")][-1:] == [b"x"]
            committing.join()


def test_a_wanted_crash_is_no_error_in_the_log(
    broker: fencepost.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    broker.faults.at("commit.prepare-appended").crash(restart=True)
    with connect(broker.bootstrap_servers) as client:
        commit(client, "id")
    # What was on its way to the disk may be a warning, which says that a test wanted this.
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


# -- mistakes of a test ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda f: f.on("EndTx"), "no API 'EndTx': did you mean 'EndTxn'"),
        (lambda f: f.on("Qqqq"), r"no API 'Qqqq'\.$"),
        (lambda f: f.on("ShareFetch"), "no API 'ShareFetch'"),
        (lambda f: f.on("EndTxn", version=99), "no version 99: this broker serves 0 to 5"),
        (lambda f: f.on("EndTxn").fail("NOT_CORDINATOR"), "did you mean 'NOT_COORDINATOR'"),
        (lambda f: f.on("EndTxn").fail("NONE"), "NONE is not an error"),
        (lambda f: f.on("EndTxn").delay(-1), "in the past"),
        (lambda f: f.on("EndTxn").delay(float("inf")), r"use hold\(\)"),
        (lambda f: f.on("EndTxn").throttle(0), "no pause"),
        (lambda f: f.on("EndTxn").throttle(1.5), "a whole number"),
        (lambda f: f.on("EndTxn").throttle(2**31), "to 2147483647 ms"),
        (lambda f: f.on("EndTxn").hold().times(0), "never apply"),
        (lambda f: f.on("EndTxn").hold().on_call(0), "never apply"),
        (lambda f: f.on("EndTxn").hold().with_probability(0, seed=1), "probability"),
        (lambda f: f.at("commit.prepare-apended"), "did you mean 'commit.prepare-appended'"),
    ],
)
def test_a_mistake_is_refused_at_once_with_what_was_probably_meant(
    broker: fencepost.Broker, wrong: Any, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        wrong(broker.faults)


@pytest.mark.usefixtures("group")
def test_a_fault_that_never_fired_says_why(broker: fencepost.Broker, client: RawClient) -> None:
    broker.faults.on("EndTxn").lose_reply()
    broker.faults.on("Heartbeat", group="other").fail("NOT_COORDINATOR")
    broker.faults.on("Heartbeat").fail("NOT_COORDINATOR").on_call(3)
    first = broker.faults.on("Heartbeat").fail("ILLEGAL_GENERATION")
    broker.faults.on("Heartbeat").fail("REBALANCE_IN_PROGRESS")
    broker.faults.on("Heartbeat").delay(0).with_probability(1e-9, seed=1)
    broker.faults.on("Fetch").delay(1).optional()
    heartbeat(client)
    with pytest.raises(UnfiredFault, match="1 request matched, and it has fired once"):
        first.wait(0.01, times=2)
    with pytest.raises(UnfiredFault) as found:
        broker.faults.check()
    message = str(found.value)
    assert message.startswith("5 of the test's faults never fired:")
    assert "REBALANCE_IN_PROGRESS'): 1 request matched, and another fault took each" in message
    assert "delay(0): 1 request matched, and a probability of 1e-09 chose none" in message
    assert "EndTxn: lose_reply(): none came" in message
    assert "group='other'): fail('NOT_COORDINATOR'): 1 came, and none of them matched" in message
    assert "1 request matched, and it waits for number 3" in message
    assert "Fetch" not in message


@pytest.mark.parametrize("begin", ["on", "at"])
def test_a_fault_that_does_not_say_what_is_to_happen_is_no_fault(
    broker: fencepost.Broker, begin: str
) -> None:
    found = {
        "on": ("EndTxn", r"on\('EndTxn'\)"),
        "at": ("commit.prepare-durable", r"at\('commit.prepare-durable'\)"),
    }
    word, shown = found[begin]
    target = getattr(broker.faults, begin)(word)
    with pytest.raises(UnfiredFault, match=shown + " does not say what is to happen: add .crash"):
        broker.faults.check()
    target.crash().optional()
    broker.faults.check()
    getattr(broker.faults, begin)(word)
    broker.faults.reset()
    broker.faults.check()


def test_waiting_for_a_fault_that_does_not_come_ends_with_the_reason(
    broker: fencepost.Broker,
) -> None:
    with pytest.raises(UnfiredFault, match=r"EndTxn: hold.. has not fired in 0.01 s: none came"):
        broker.faults.on("EndTxn").hold().wait(0.01)


def test_cleared_faults_neither_apply_nor_count_and_let_go_what_they_held(
    broker: fencepost.Broker, client: RawClient
) -> None:
    fault = broker.faults.on("Metadata").hold().always()
    waiting = client.send(ApiKey.METADATA, VERSION, METADATA)
    fault.wait()
    broker.faults.on("EndTxn").crash()
    broker.faults.clear()
    assert client.reply(ApiKey.METADATA, VERSION, waiting).brokers
    assert client.call(ApiKey.METADATA, VERSION, METADATA).brokers
    broker.faults.check()
    assert broker.faults.pending == []


def test_faults_can_be_armed_before_the_start_and_survive_a_restart() -> None:
    broker = fencepost.Broker()
    broker.faults.on("Metadata").fail("LEADER_NOT_AVAILABLE").times(2)
    with broker:
        named = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        for _ in range(2):
            with RawClient(broker.bootstrap_servers) as client:
                reply = client.call(ApiKey.METADATA, VERSION, named)
            assert reply.topics[0].error_code == 5
            broker.restart()
        broker.faults.check()

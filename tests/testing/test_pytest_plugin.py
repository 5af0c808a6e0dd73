"""The fixtures in another project's test suite."""

from __future__ import annotations

import os
import re

import pytest

import fencepost
from tools.fencepost_process import ROOT

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest

pytest_plugins = ["fencepost.testing.pytest_plugin"]

@pytest.fixture(scope="session")
def fencepost_config():
    return {"num.partitions": 3}
"""

SUITE = """
from confluent_kafka import Producer

def write(broker, transactional_id="refunds-1"):
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("refunds", b"r-17")
    producer.commit_transaction(30)
    return producer.list_topics("refunds", timeout=30).topics["refunds"].partitions

def topics(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    return [name for name in producer.list_topics(timeout=30).topics if not name.startswith("__")]

def test_the_settings_are_those_of_the_suite(fencepost_broker):
    assert len(write(fencepost_broker)) == 3

def test_the_next_test_has_an_empty_broker(fencepost_broker):
    assert topics(fencepost_broker) == []

def test_a_broker_may_be_restarted(fencepost_broker):
    write(fencepost_broker)
    fencepost_broker.restart()
    assert topics(fencepost_broker) == ["refunds"]

def test_what_one_test_writes(fencepost_shared_broker):
    write(fencepost_shared_broker)

def test_another_one_sees_on_the_shared_broker(fencepost_shared_broker):
    assert topics(fencepost_shared_broker) == ["refunds"]
"""


STRICT_SUITE = """
import pytest

def test_its_fault_never_fires(fencepost_broker):
    fencepost_broker.faults.on("EndTxn").lose_reply()

def test_its_fault_may_fire(fencepost_broker):
    fencepost_broker.faults.on("EndTxn").lose_reply().optional()

def test_it_fails_anyway(fencepost_broker):
    fencepost_broker.faults.on("EndTxn").lose_reply()
    raise ValueError("the only thing to report")

def test_the_shared_broker_is_not_strict(fencepost_shared_broker):
    fencepost_shared_broker.faults.on("EndTxn").lose_reply()
"""

EXAMPLE_SUITE = """
from confluent_kafka import Producer

def run_my_service(servers):
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "refunds"})
    producer.init_transactions()
    for key in (b"s-1", b"s-2"):
        producer.begin_transaction()
        producer.produce("refunds", key=key)
        producer.commit_transaction()

def test_a_lost_answer_is_not_a_second_refund(fencepost_broker):
    fencepost_broker.create_topic("refunds", partitions=2)
    fencepost_broker.faults.on("EndTxn").lose_reply().once()
    run_my_service(fencepost_broker.bootstrap_servers)
    assert [r.key for r in fencepost_broker.committed("refunds")] == [b"s-1", b"s-2"]
    fencepost_broker.clock.advance(minutes=15)      # transaction.timeout.ms has passed
    assert not fencepost_broker.open_transactions()
"""

NAMED_SUITE = """
def test_words_and_faults(fencepost_broker, fencepost_namespace):
    topic = fencepost_namespace + "refunds"
    fencepost_broker.faults.on("Metadata").fail("LEADER_NOT_AVAILABLE").optional()
    fencepost_broker.produce(topic, "r-17")
    assert [record.value for record in fencepost_broker.committed(topic)] == [b"r-17"]

def test_its_fault_never_fires(fencepost_shared_broker, fencepost_broker):
    assert fencepost_broker.bootstrap_servers != fencepost_shared_broker.bootstrap_servers
    fencepost_broker.faults.on("EndTxn").lose_reply()

def test_time(fencepost_broker):
    fencepost_broker.faults.on("EndTxn").lose_reply()
    fencepost_broker.clock.advance(minutes=16)

def test_a_crash(fencepost_broker):
    fencepost_broker.faults.on("EndTxn").crash(restart=True)

def test_a_cluster(fencepost_cluster):
    fencepost_cluster.kill(1)

def test_users_and_acls(fencepost_secure_broker):
    fencepost_secure_broker.client_config("alice")
"""

NAMES_SUITE = """
import pytest

seen = []

@pytest.mark.parametrize("what", ["a/b c", "x" * 500])
def test_names_are_fit_for_topics(fencepost_namespace, fencepost_shared_broker, what):
    topic = fencepost_namespace + "refunds"
    fencepost_shared_broker.create_topic(topic)
    assert topic not in seen
    seen.append(topic)
"""

CLUSTER_CONFTEST = (
    CONFTEST
    + """
@pytest.fixture(scope="session")
def fencepost_cluster_size():
    return 2
"""
)

CLUSTER_SUITE = """
from confluent_kafka import Producer

def test_a_suite_chooses_settings_and_size(fencepost_cluster):
    assert [broker.id for broker in fencepost_cluster.brokers] == [1, 2]
    producer = Producer({"bootstrap.servers": fencepost_cluster.bootstrap_servers})
    producer.produce("refunds", b"r-17")
    assert producer.flush(30) == 0
    assert len(producer.list_topics("refunds", timeout=30).topics["refunds"].partitions) == 3
    fencepost_cluster.kill(2)
    assert fencepost_cluster.leader_of("refunds", 0) == 1
    raise ValueError("to see the log")
"""

SECURE_SUITE = """
import pytest
from confluent_kafka import KafkaException, Producer
from fencepost import Security

@pytest.fixture
def fencepost_security():
    return Security(users={"alice": "secret"}, acls=["User:alice create topic:*"])

def writer(broker):
    given = {**broker.client_config("alice"), "transactional.id": "refunds-1"}
    return Producer(given)

def test_what_is_not_granted_is_denied(fencepost_secure_broker):
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        writer(fencepost_secure_broker).init_transactions(30)

def test_what_is_granted_works(fencepost_secure_broker):
    fencepost_secure_broker.grant(
        "alice", "transactional", transactional_id="refunds-1", topic="refunds"
    )
    producer = writer(fencepost_secure_broker)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("refunds", b"r-17")
    producer.commit_transaction(30)
"""

DEFAULT_SECURE_SUITE = """
def test_alice_can_log_in(fencepost_secure_broker):
    given = fencepost_secure_broker.client_config("alice")
    assert given["security.protocol"] == "SASL_SSL"

def test_its_groups_wait_for_no_one_and_its_fault_never_fires(fencepost_secure_broker):
    config = fencepost_secure_broker.call(lambda node: node.config)
    assert config.group_initial_rebalance_delay_ms == 0
    fencepost_secure_broker.faults.on("EndTxn").lose_reply()
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    return pytester


def test_a_suite_gets_fresh_and_shared_brokers(suite: pytest.Pytester) -> None:
    suite.makeconftest(CONFTEST)
    suite.makepyfile(SUITE)
    suite.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=5)


def test_a_test_that_passes_fails_in_the_end_if_its_fault_never_fired(
    suite: pytest.Pytester,
) -> None:
    suite.makeconftest(CONFTEST)
    suite.makepyfile(STRICT_SUITE)
    ended = suite.runpytest_subprocess("-p", "no:cacheprovider")
    ended.assert_outcomes(passed=3, failed=1, errors=1)
    shown = ended.stdout.str()
    assert "ERROR at teardown of test_its_fault_never_fires" in shown
    assert "EndTxn: lose_reply(): none came: does the client send it" in shown


def test_tests_that_share_a_broker_have_names_of_their_own(suite: pytest.Pytester) -> None:
    suite.makeconftest(CONFTEST)
    suite.makepyfile(NAMES_SUITE)
    suite.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_a_suite_runs_on_the_cluster_that_a_variable_names(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.makeconftest(CONFTEST)
    suite.makepyfile(NAMED_SUITE)
    with fencepost.Broker() as broker:
        monkeypatch.setenv("FENCEPOST_TEST_BOOTSTRAP", broker.bootstrap_servers)
        ended = suite.runpytest_subprocess("-p", "no:cacheprovider", "-rs")
    ended.assert_outcomes(passed=2, skipped=4, errors=1)
    assert "ERROR at teardown of test_its_fault_never_fires" in ended.stdout.str()
    assert "FENCEPOST_TEST_BOOTSTRAP names a cluster" in ended.stdout.str()


def test_a_suite_gets_secure_brokers_and_chooses_their_users(suite: pytest.Pytester) -> None:
    suite.makeconftest(CONFTEST)
    suite.makepyfile(test_default=DEFAULT_SECURE_SUITE, test_own=SECURE_SUITE)
    ended = suite.runpytest_subprocess("-p", "no:cacheprovider")
    ended.assert_outcomes(passed=4, errors=1)
    assert "EndTxn: lose_reply(): none came: does the client send it" in ended.stdout.str()


def test_what_a_lost_answer_looks_like_in_a_test_is_as_promised(suite: pytest.Pytester) -> None:
    suite.makeconftest('pytest_plugins = ["fencepost.testing.pytest_plugin"]')
    suite.makepyfile(EXAMPLE_SUITE)
    suite.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_failed_test_shows_the_log_of_its_cluster_once(suite: pytest.Pytester) -> None:
    suite.makeconftest(CLUSTER_CONFTEST)
    suite.makepyfile(CLUSTER_SUITE)
    # The plugin is loaded under both of its names: by its entry point, and by the conftest.py.
    ended = suite.runpytest_subprocess("-p", "no:cacheprovider")
    ended.assert_outcomes(failed=1)
    shown = ended.stdout.str()
    assert "ValueError: to see the log" in shown
    assert shown.count("- fencepost cluster -") == 1
    assert re.search(r"broker 2 \(process \d+\) ended: killed by SIGKILL", shown)

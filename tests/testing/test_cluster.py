"""`fencepost.Cluster` with real processes. Most tests share one cluster and leave it as it was."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fencepost
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.reading import LATEST
from fencepost.testing.faults import UnfiredFault
from tests.testing.test_embedded import in_a_child
from tools.fencepost_process import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def shared() -> Iterator[fencepost.Cluster]:
    config = {"num.partitions": 3, "offsets.topic.num.partitions": 3}
    with fencepost.Cluster(3, config={**config, "transaction.state.log.num.partitions": 3}) as made:
        with connect(made.bootstrap_servers) as client:
            client.create_topics([NewTopic("orders", partitions=3)])
        yield made


@pytest.fixture
def cluster(shared: fencepost.Cluster) -> Iterator[fencepost.Cluster]:
    """The shared cluster, with three brokers that serve before and after a test."""
    assert states(shared) == ["serving"] * 3
    yield shared
    assert states(shared) == ["serving"] * 3


def states(cluster: fencepost.Cluster) -> list[str]:
    return [broker.state for broker in cluster.brokers]


def answers(address: str | None) -> bool:
    """Whether a broker accepts a connection."""
    host, _, port = str(address).rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=30).close()
    except ConnectionRefusedError:
        return False
    return True


def test_brokers_have_ids_processes_and_addresses(cluster: fencepost.Cluster) -> None:
    brokers = cluster.brokers
    assert [broker.id for broker in brokers] == [1, 2, 3]
    assert cluster.bootstrap_servers == ",".join(str(broker.address) for broker in brokers)
    for broker in brokers:
        assert broker.pid is not None
        os.kill(broker.pid, 0)
    assert repr(cluster) == f"<fencepost.Cluster at {cluster.bootstrap_servers}>"


def test_every_broker_tells_the_id_of_the_cluster(cluster: fencepost.Cluster) -> None:
    for broker in cluster.brokers:
        with connect(str(broker.address)) as client:
            assert client.describe_cluster().cluster_id == cluster.status()["cluster"] != ""


def test_a_partition_is_led_by_the_broker_that_it_was_moved_to(cluster: fencepost.Cluster) -> None:
    for to in (2, 3, 1, 1):
        cluster.move("orders", 0, to)
        assert cluster.leader_of("orders", 0) == to


@pytest.mark.parametrize("kind", ["transactional", "group"])
def test_a_coordinator_can_be_moved(cluster: fencepost.Cluster, kind: str) -> None:
    for to in (3, 2):
        cluster.move_coordinator(kind, "refunds", to)  # type: ignore[arg-type]
        assert cluster.coordinator_of(kind, "refunds") == to  # type: ignore[arg-type]


def test_others_lead_when_kill_returns_and_a_rebalance_gives_a_broker_its_share(
    cluster: fencepost.Cluster,
) -> None:
    cluster.move("orders", 1, 2)
    before = cluster.brokers[1]
    cluster.kill(2)
    assert states(cluster) == ["serving", "dead", "serving"]
    assert cluster.brokers[1].pid is None
    assert cluster.leader_of("orders", 1) in (1, 3)
    with connect(cluster.bootstrap_servers) as client:
        partition = TopicPartition("orders", 1)
        assert client.list_offsets({partition: LATEST})[partition].offset == 0
    cluster.restart(2)
    after = cluster.brokers[1]
    assert (after.address, after.restarts) == (before.address, before.restarts + 1)
    cluster.rebalance()
    leads = [broker.leads for broker in cluster.brokers]
    assert max(leads) - min(leads) <= 1


def test_a_paused_broker_stands_still_until_it_is_resumed(cluster: fencepost.Cluster) -> None:
    cluster.pause(1)
    try:
        pid = cluster.brokers[0].pid
        assert states(cluster) == ["paused", "serving", "serving"]
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T"
        # The other brokers still answer.
        assert cluster.leader_of("orders", 2) in (1, 2, 3)
    finally:
        cluster.resume(1)


def test_a_broker_that_is_down_refuses_clients_and_leads_on(cluster: fencepost.Cluster) -> None:
    cluster.move("orders", 2, 1)
    address = cluster.brokers[0].address
    cluster.down(1)
    assert not answers(address)
    assert states(cluster) == ["down", "serving", "serving"]
    assert cluster.leader_of("orders", 2) == 1
    # Broker 1 is the controller that Metadata names; others forward to it.
    cluster.move("orders", 2, 3)
    assert cluster.leader_of("orders", 2) == 3
    cluster.up(1)
    assert answers(address)


def test_a_rolled_broker_is_a_new_process_at_the_same_address(cluster: fencepost.Cluster) -> None:
    before = cluster.brokers
    cluster.roll(3)
    after = cluster.brokers
    assert after[2].pid != before[2].pid
    assert after[2].address == before[2].address
    assert [each.pid for each in after[:2]] == [each.pid for each in before[:2]]


def test_a_fault_hits_the_next_request_of_an_api_at_one_broker(cluster: fencepost.Cluster) -> None:
    cluster.move_coordinator("transactional", "refunds", 2)
    with connect(cluster.bootstrap_servers, {"retries": "0"}) as client:
        first = client.init_producer_id("refunds")
        there = cluster.faults.on("InitProducerId", broker=2, transactional_id="refunds")
        lost = there.lose_reply()
        # The reply of the first attempt is lost, so the client sends it again.
        assert client.init_producer_id("refunds").producer_epoch == first.producer_epoch + 2
        failed = there.fail("COORDINATOR_LOAD_IN_PROGRESS").times(2)
        late = there.delay(0.001)
        assert client.init_producer_id("refunds").producer_epoch == first.producer_epoch + 3
        assert [each.fired for each in (lost, failed, late)] == [1, 2, 1]
    cluster.faults.check()
    assert [each.fault for each in cluster.faults.fired] == [
        "lose_reply()",
        *["fail('COORDINATOR_LOAD_IN_PROGRESS')"] * 2,
        "delay(0.001)",
    ]
    cluster.faults.reset()


def test_a_held_request_is_released_and_a_fault_of_a_killed_broker_is_not_taken_for_fired(
    cluster: fencepost.Cluster,
) -> None:
    cluster.move_coordinator("transactional", "held", 3)
    with connect(cluster.bootstrap_servers) as client, ThreadPoolExecutor() as pool:
        held = cluster.faults.on("InitProducerId", broker=3).hold()
        waiting = pool.submit(client.init_producer_id, "held")
        held.wait()
        assert (held.held, waiting.done()) == (1, False)
        held.release()
        assert waiting.result(60).producer_epoch >= 0
    never = cluster.faults.on("EndTxn", broker=3).lose_request()
    cluster.kill(3)
    try:
        with pytest.raises(UnfiredFault, match="Broker 3 does not run"):
            cluster.faults.check()
        cluster.restart(3)
        with pytest.raises(UnfiredFault, match="has been restarted since, and the fault is gone"):
            cluster.faults.check()
        assert held.fired == 1
        never.remove()
        cluster.faults.check()
    finally:
        cluster.restart(3)
        cluster.faults.reset()


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda cluster: cluster.kill(7), "There is no broker 7; the brokers are 1, 2, 3."),
        (lambda cluster: cluster.kill("2"), "broker_id must be a whole number, not '2'"),
        (lambda cluster: cluster.move("orders", 0, 7), "no live broker 7; its live brokers are 1"),
        (lambda cluster: cluster.move("orders", 9, 1), "Metadata for orders-9 was refused"),
        (lambda cluster: cluster.leader_of("orders", 9), "'orders' has no partition 9."),
        (lambda cluster: cluster.coordinator_of("share", "g"), "no coordinator 'share': use"),
        (lambda cluster: cluster.faults.on("EndTxn", broker=7).hold(), "There is no broker 7"),
        (lambda cluster: cluster.start(), "The cluster is already running."),
    ],
)
def test_a_wrong_call_is_refused_with_a_sentence(
    cluster: fencepost.Cluster, use: Callable[[fencepost.Cluster], None], said: str
) -> None:
    with pytest.raises(FencepostError, match=said):
        use(cluster)


def test_a_dead_broker_cannot_be_paused_taken_down_rolled_or_given_faults(
    cluster: fencepost.Cluster,
) -> None:
    cluster.kill(3)
    try:
        for use in (cluster.pause, cluster.resume, cluster.down, cluster.up, cluster.roll):
            with pytest.raises(FencepostError, match="Broker 3 does not"):
                use(3)
        with pytest.raises(FencepostError, match="Broker 3 does not run"):
            cluster.faults.on("EndTxn", broker=3).lose_reply()
        with pytest.raises(FencepostError, match="no live broker 3"):
            cluster.move("orders", 0, 3)
        cluster.kill(3)
    finally:
        cluster.restart(3)
    cluster.restart(3)


def test_several_threads_may_command_a_cluster_at_once(cluster: fencepost.Cluster) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda index: cluster.move("orders", index, index + 1), range(3)))
    assert [cluster.leader_of("orders", index) for index in range(3)] == [1, 2, 3]


def test_a_forked_process_can_be_a_client_and_nothing_else(cluster: fencepost.Cluster) -> None:
    def use() -> None:
        with connect(cluster.bootstrap_servers) as client:
            assert len(client.metadata().brokers) == 3
        with pytest.raises(FencepostError, match="parent of this fork"):
            cluster.kill(1)
        cluster.stop()
        cluster.close()

    in_a_child(use)
    assert cluster.data is not None
    assert Path(cluster.data, "meta.properties").exists()


# -- the life of a cluster
# ------------------------------------------------------------------------------------------


def test_a_restart_keeps_data_ports_and_log_and_close_deletes_them(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with fencepost.Cluster(2, trace=trace) as cluster:
        address = cluster.bootstrap_servers
        with connect(address) as client:
            client.create_topics([NewTopic("orders")])
        # A forked process keeps neither the cluster alive nor its end unseen.
        process, let_go = waiting_child()
        cluster.restart()
        assert cluster.bootstrap_servers == address
        with connect(address) as client:
            assert "orders" in client.metadata().topics
        folder = Path(str(cluster.data)).parent
        assert folder.exists()
        cluster.stop()
        cluster.stop()
        with pytest.raises(FencepostError, match="not running: use `with Cluster"):
            assert cluster.brokers
        with pytest.raises(FencepostError, match="not running"):
            assert cluster.bootstrap_servers
    os.close(let_go)
    os.waitpid(process, 0)
    assert not folder.exists()
    assert cluster.data is None
    assert cluster.log_text().count("stopping 2 brokers") == 2
    assert "CreateTopics" in trace.read_text()


def waiting_child() -> tuple[int, int]:
    """A forked process that lives until the descriptor is closed."""
    end, held = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(held)
        os.read(end, 1)
        os._exit(0)
    os.close(end)
    return process, held


def test_a_cluster_that_cannot_start_says_why_in_words_of_the_arguments(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, said in [
        ({"data": tmp_path / "file"}, "it is a file. Choose another one with data=."),
        ({"host": "0.0.0.0"}, "can be reached from other machines.*listen on 127.0.0.1 or"),
        ({"port": 99_999}, "host and port are '127.0.0.1:99999'"),
        ({"brokers": 0}, "brokers is 0; it must be between 1 and"),
        ({"config": {"num.partition": 3}}, "num.partition"),
    ]:
        cluster = fencepost.Cluster(**arguments)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=said) as caught:
            cluster.start()
        assert "--" not in str(caught.value)
    assert "fencepost: " in cluster.log_text()
    with pytest.raises(TypeError, match="config must be a mapping"):
        fencepost.Cluster(config="num.partitions=3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="brokers must be a whole number"):
        fencepost.Cluster("3")  # type: ignore[arg-type]


def test_a_taken_port_ends_the_start_and_every_process(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=r"broker \d: .*in use"):
            fencepost.Cluster(2, port=port - 1, data=tmp_path / "data").start()
    with fencepost.Cluster(1, data=tmp_path / "data") as cluster:
        assert states(cluster) == ["serving"]


def gone(pids: list[int]) -> None:
    """Returns when none of these processes runs; fails if that takes a minute."""
    for pid in pids:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        assert poll.poll(60_000), f"process {pid} runs on"
        os.close(watched)


SCRIPT = """
import sys, fencepost
cluster = fencepost.Cluster(2)
cluster.start()
paused = cluster.brokers[0].id
if "pause" in sys.argv:
    cluster.pause(paused)
print(cluster.data, cluster.status()["controller"]["pid"], *[b.pid for b in cluster.brokers])
sys.stdout.flush()
sys.stdin.read()
"""


def start_program(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


@pytest.mark.parametrize("arguments", [(), ("pause",)], ids=str)
def test_nothing_outlives_a_program_that_is_killed(arguments: tuple[str, ...]) -> None:
    with start_program(*arguments) as program:
        assert program.stdout is not None
        data, *pids = program.stdout.readline().split()
        assert len(pids) == 3
        program.kill()
        program.communicate()
    gone([int(pid) for pid in pids])
    folder = Path(data).parent
    try:
        with fencepost.Cluster(2, data=data) as cluster:
            assert states(cluster) == ["serving"] * 2
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=True)


def test_a_program_that_forgets_its_cluster_leaves_nothing_behind() -> None:
    with start_program() as program:
        assert program.stdout is not None
        data, *pids = program.stdout.readline().split()
        _, errors = program.communicate("")
        assert (program.returncode, errors) == (0, "")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert not Path(data).parent.exists()


def test_a_cluster_whose_parent_is_killed_says_so_and_its_brokers_end() -> None:
    cluster = fencepost.Cluster(2)
    cluster.start()
    try:
        found = cluster.status()
        folder = Path(str(cluster.data)).parent
        os.kill(found["controller"]["pid"], signal.SIGKILL)
        # Its brokers may see the end of their links before it counts as dead.
        gone([found["controller"]["pid"], *(broker["pid"] for broker in found["brokers"])])
        with pytest.raises(FencepostError, match=r"has stopped by itself: .*-9"):
            assert cluster.bootstrap_servers
    finally:
        with pytest.raises(FencepostError, match=r"stopped by itself: .*-9"):
            cluster.close()
    assert not folder.exists()


def test_if_several_threads_start_a_cluster_it_starts_once() -> None:
    cluster = fencepost.Cluster(1)
    barrier = threading.Barrier(3)

    def start() -> str:
        barrier.wait()
        try:
            cluster.start()
        except FencepostError as problem:
            return str(problem)
        return ""

    try:
        with ThreadPoolExecutor(3) as pool:
            outcomes = sorted(pool.map(lambda _: start(), range(3)))
        assert outcomes == ["", *["The cluster is already running."] * 2]
        assert states(cluster) == ["serving"]
    finally:
        cluster.close()

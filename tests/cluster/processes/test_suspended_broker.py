"""A broker that was killed and cannot be reaped: no broker leads its partitions until it is.

A process that is traced stays in the kernel after SIGKILL until its tracer has let it go. So a
tracer makes a broker that the parent cannot reap, as one that sleeps in the kernel.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.failures import RetriesExhausted

pytestmark = pytest.mark.slow

TRACER = """
import ctypes, sys
PTRACE_SEIZE = 0x4206
trace = ctypes.CDLL(None, use_errno=True).ptrace
trace.restype, trace.argtypes = ctypes.c_long, [ctypes.c_long] * 4
print(trace(PTRACE_SEIZE, int(sys.argv[1]), 0, 0), flush=True)
sys.stdin.read()
"""

CONFIG = {
    "broker.session.timeout.ms": 6_000,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}


@contextmanager
def unreapable(pid: int | None) -> Iterator[None]:
    """Inside, a process that is killed cannot be reaped by its parent."""
    command = [sys.executable, "-c", TRACER, str(pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != b"0\n":
            pytest.skip("this machine does not let a process trace another one")
        yield
        tracer.communicate()


def test_nobody_leads_or_coordinates_in_place_of_a_broker_that_cannot_be_reaped() -> None:
    with fencepost.Cluster(3, config=CONFIG) as cluster:
        with connect(cluster.bootstrap_servers) as client:
            client.create_topics([NewTopic("orders", partitions=3)])
        cluster.move("orders", 0, 2)
        cluster.move_coordinator("transactional", "refunds", 2)
        pid = cluster.brokers[1].pid
        with unreapable(pid):
            with pytest.raises(FencepostError, match=rf"the kernel does not let its process {pid}"):
                cluster.kill(2)
            status = cluster.status()
            assert [each["state"] for each in status["brokers"]] == [
                "serving",
                "suspended",
                "serving",
            ]
            assert status["brokers"][1]["leads"] == 0
            assert status["leaderless"] > 0
            assert cluster.leader_of("orders", 0) == -1
            with pytest.raises(FencepostError, match="Broker 2 was killed, but the kernel"):
                cluster.restart(2)
            with connect(cluster.bootstrap_servers, {"default.api.timeout.ms": "2000"}) as client:
                assert sorted(client.metadata().brokers) == [1, 3]
                # Everything else can still be changed.
                client.create_topics([NewTopic("refunds", partitions=2)])
                with pytest.raises(RetriesExhausted, match="COORDINATOR_NOT_AVAILABLE"):
                    client.init_producer_id("refunds")
        # `restart` was asked for: when it has died, others take over and it is started.
        cluster.restart(2)
        assert cluster.status()["leaderless"] == 0
        assert cluster.leader_of("orders", 0) in (1, 2, 3)
        with connect(cluster.bootstrap_servers) as client:
            assert client.init_producer_id("refunds").producer_epoch == 0


def test_a_cluster_stops_although_one_of_its_brokers_cannot_be_reaped() -> None:
    cluster = fencepost.Cluster(2, config=CONFIG)
    cluster.start()
    try:
        with unreapable(cluster.brokers[1].pid):
            with pytest.raises(FencepostError, match="the kernel does not let"):
                cluster.kill(2)
            cluster.stop()
        cluster.start()
        assert [each.state for each in cluster.brokers] == ["serving"] * 2
    finally:
        cluster.close()

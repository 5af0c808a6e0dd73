"""Carries out the faults of a schedule on a running cluster.

A fault is a generator: it begins, yields, and ends when it is resumed. So two faults can overlap.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Generator, Iterator
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    coordinator_partition,
)
from fencepost.client.admin import ClusterView
from fencepost.client.blocking import connect
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from fencepost.wire.forms.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.cluster.chaos.cluster_process import ClusterProcess, is_running
from tests.cluster.chaos.copier import COPIES, SOURCE, group_of
from tests.cluster.chaos.schedule import Fault, Kind, Round
from tests.cluster.chaos.workload import Workload

SESSION_SECONDS: Final = 6.0
"""The session timeout of the brokers. A pause that must not exceed it is shorter by seconds, so
that a busy machine does not turn it into a death."""
PAUSE_SECONDS: Final = (0.2, 1.7)
PARENT_PAUSE_SECONDS: Final = (0.5, 1.5 * SESSION_SECONDS)
PROGRESS_SECONDS: Final = 60.0
ORPHAN_SECONDS: Final = 10.0
MOVED_TOPICS: Final = (SOURCE, COPIES, TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)
PREFERRED: Final = 0
PATIENT_RESTARTS: Final = 2
"""So many restarts are left to the parent; later ones are ordered, to save its longer pauses."""

Course = Generator[None, None, None]


class Faults:
    """Carries out one schedule."""

    def __init__(
        self, cluster: ClusterProcess, workload: Workload, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._workload = workload
        self._say = say
        self._is_overlapping = False
        self._hit: set[int] = set()
        """The brokers that the faults of this round have hit."""
        self.count = 0

    def run(self, rounds: list[Round]) -> None:
        """Carries out all rounds; AssertionError if the cluster does not recover from one."""
        for round_ in rounds:
            self._await_progress("before a fault")
            self._run_round(round_)
            self._cluster.wait_until_all_serve()
        self._await_progress("after the last fault")

    def _run_round(self, round_: Round) -> None:
        began = time.monotonic()
        self._is_overlapping = len(round_) > 1
        self._hit.clear()
        courses = []
        for fault in round_:
            self.count += 1
            course = self._carry_out(fault)
            self._say(f"{self.count:4} {fault}")
            next(course)
            courses.append(course)
        if round_[-1].dice % 2:
            courses.reverse()
        for course in courses:
            next(course, None)
        self._say(f"     took {time.monotonic() - began:.1f} s")

    def _await_progress(self, when: str, copiers: int = 2) -> None:
        assert self._workload.wait_for_progress(copiers, PROGRESS_SECONDS), (
            f"fewer than {copiers} copiers have made progress for {PROGRESS_SECONDS:g} s, {when}; "
            f"the brokers: {self._cluster.status()}"
        )

    def _carry_out(self, fault: Fault) -> Course:
        randomness = random.Random(fault.dice)
        courses: dict[Kind, Callable[[int, random.Random], Course]] = {
            Kind.KILL: self._kill,
            Kind.CRASH: self._crash,
            Kind.PAUSE: self._pause,
            Kind.FREEZE: self._freeze,
            Kind.DOWN: self._down,
            Kind.ROLL: self._roll,
            Kind.REBALANCE: self._rebalance,
            Kind.PARENT_KILL_IN_TAKEOVER: self._kill_parent_in_takeover,
        }
        if fault.kind in courses:
            return courses[fault.kind](self._target(fault), randomness)
        copiers = self._workload.copiers
        actions: dict[Kind, Callable[[], None]] = {
            Kind.MOVE: lambda: self._move(randomness),
            Kind.PARENT_KILL: self._kill_parent,
            Kind.PARENT_PAUSE: lambda: self._pause_parent(
                randomness.uniform(*PARENT_PAUSE_SECONDS)
            ),
            Kind.RESTART: self._restart,
            Kind.COPIER_KILL: copiers[fault.number % len(copiers)].restart,
        }
        return self._at_once(actions[fault.kind])

    @staticmethod
    def _at_once(action: Callable[[], None]) -> Course:
        action()
        yield

    # -- who is hit -------------------------------------------------------------------------------

    def _target(self, fault: Fault) -> int:
        """The broker that has a role now; another one if that one is dead or was hit already."""
        wanted = fault.number % len(self._cluster.broker_ids) + 1
        if fault.role != "broker":
            with contextlib.suppress(FencepostError, KeyError):
                wanted = self._leader(fault)
        serving = [each["id"] for each in self._cluster.status() if each["state"] == "serving"]
        others = [broker_id for broker_id in serving if broker_id not in self._hit]
        if wanted not in others and others:
            wanted = int(others[fault.dice % len(others)])
        self._hit.add(wanted)
        return wanted

    def _leader(self, fault: Fault) -> int:
        if fault.role == "leader":
            topic, index = COPIES, fault.number
        else:
            names = {"coordinator": TRANSACTION_STATE_TOPIC, "group": CONSUMER_OFFSETS_TOPIC}
            topic = names[fault.role]
            copier = self._workload.copiers[fault.number % len(self._workload.copiers)]
            count = len(self._view([topic]).topics[topic].partitions)
            index = coordinator_partition(group_of(copier.name), count)
        return self._view([topic]).topics[topic].partitions[index].leader

    def _view(self, topics: list[str]) -> ClusterView:
        with connect(self._cluster.bootstrap_servers, {"default.api.timeout.ms": 5_000}) as client:
            return client.metadata(topics)

    # -- faults -----------------------------------------------------------------------------------

    def _kill(self, broker_id: int, _: random.Random) -> Course:
        self._cluster.do("kill", broker_id)
        if not self._is_overlapping:
            self._await_progress(f"while broker {broker_id} is dead")
        yield
        self._cluster.do("restart", broker_id)

    def _crash(self, broker_id: int, _: random.Random) -> Course:
        pid = self._cluster.broker(broker_id)["pid"]
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        yield
        self._await_other_process(broker_id, pid)

    def _freeze(self, broker_id: int, _: random.Random) -> Course:
        pid = self._cluster.broker(broker_id)["pid"]
        with self._unless_it_is_dead():
            self._cluster.do("pause", broker_id)
        yield
        self._await_other_process(broker_id, pid)

    def _await_other_process(self, broker_id: int, pid: int | None) -> None:
        """The parent starts it again, after a pause that grows with every early death."""
        self._cluster.wait_until(
            lambda: bool(self._cluster.broker(broker_id)["pid"] != pid), f"broker {broker_id} ends"
        )
        if self._cluster.broker(broker_id)["restarts"] > PATIENT_RESTARTS:
            self._cluster.do("restart", broker_id)

        def has_another() -> bool:
            now = self._cluster.broker(broker_id)
            return bool(now["state"] == "serving" and now["pid"] != pid)

        self._cluster.wait_until(has_another, f"broker {broker_id} serves in another process")

    def _pause(self, broker_id: int, randomness: random.Random) -> Course:
        with self._unless_it_is_dead():
            self._cluster.do("pause", broker_id)
        yield
        time.sleep(randomness.uniform(*PAUSE_SECONDS))  # The length of the pause is the fault.
        with self._unless_it_is_dead():
            self._cluster.do("resume", broker_id)

    def _down(self, broker_id: int, randomness: random.Random) -> Course:
        with self._unless_it_is_dead():
            self._cluster.do("down", broker_id)
        yield
        time.sleep(randomness.uniform(0.2, 2.5))  # The length of the interruption is the fault.
        with self._unless_it_is_dead():
            self._cluster.do("up", broker_id)

    @contextlib.contextmanager
    def _unless_it_is_dead(self) -> Iterator[None]:
        """In an overlap the broker may be dead already, or may have died."""
        try:
            yield
        except FencepostError:
            if not self._is_overlapping:
                raise

    def _roll(self, broker_id: int, _: random.Random) -> Course:
        self._cluster.do("roll", broker_id)
        yield

    def _rebalance(self, broker_id: int, _: random.Random) -> Course:
        self._cluster.do("kill", broker_id)
        yield
        self._cluster.do("restart", broker_id)
        self._cluster.do("rebalance")

    def _move(self, randomness: random.Random) -> None:
        """Moves up to five partitions to other leaders, over Kafka's own requests."""
        with connect(self._cluster.bootstrap_servers, {"default.api.timeout.ms": 15_000}) as client:
            view = client.metadata(list(MOVED_TOPICS), missing_ok=True)
            places = sorted(
                (name, each.index)
                for name, topic in view.topics.items()
                for each in topic.partitions
            )
            chosen = randomness.sample(places, randomness.randint(1, 5))
            topics: dict[str, list[ReassignablePartition]] = {}
            for name, index in chosen:
                replicas = list(self._cluster.broker_ids)
                randomness.shuffle(replicas)
                topics.setdefault(name, []).append(
                    ReassignablePartition(partition_index=index, replicas=replicas)
                )
            with self._unless_it_is_dead():
                client.send_request(
                    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                    AlterPartitionReassignmentsRequest(
                        topics=[
                            ReassignableTopic(name=name, partitions=parts)
                            for name, parts in topics.items()
                        ]
                    ),
                )
                client.send_request(
                    ApiKey.ELECT_LEADERS,
                    ElectLeadersRequest(
                        election_type=PREFERRED,
                        topic_partitions=[
                            TopicPartitions(
                                topic=name, partitions=[each.partition_index for each in parts]
                            )
                            for name, parts in topics.items()
                        ],
                    ),
                )

    def _kill_parent_in_takeover(self, broker_id: int, randomness: random.Random) -> Course:
        if (pid := self._cluster.broker(broker_id)["pid"]) is not None:
            os.kill(pid, signal.SIGKILL)
        time.sleep(randomness.uniform(0, 0.1))  # How far the takeover has come is the fault.
        self._kill_parent()
        yield

    def _kill_parent(self) -> None:
        pids = self._cluster.kill_parent()
        self._await_end(pids)
        self._cluster.start()

    @staticmethod
    def _await_end(pids: list[int]) -> None:
        deadline = time.monotonic() + ORPHAN_SECONDS
        while left := [pid for pid in pids if is_running(pid)]:
            assert time.monotonic() < deadline, f"brokers {left} have outlived their parent"
            time.sleep(0.01)

    def _pause_parent(self, seconds: float) -> None:
        """Nobody may be killed because the parent stood still."""
        before = self._cluster.status()
        pid = self._cluster.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)  # The length of the pause is the fault.
        finally:
            os.kill(pid, signal.SIGCONT)
        after = self._cluster.status()
        if not self._is_overlapping:
            pids = [[each["pid"] for each in status] for status in (before, after)]
            assert pids[0] == pids[1], f"a parent that stood still killed brokers: {pids}"

    def _restart(self) -> None:
        status = self._cluster.stop()
        assert status == 0, f"the parent ended with {status}:\n{self._cluster.log[-2000:]}"
        self._cluster.start()

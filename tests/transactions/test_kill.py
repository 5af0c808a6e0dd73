"""kill -9 of a real broker process at every point between two writes of a commit and of an abort.

Method: the broker calls a hook with a name between any two writes. The calls of one commit and one
abort are known, and compared with those of a broker in this process. For each call, a broker
process kills itself there, and another one is started on the same directory. The Prepare record
decides: with it in the log the outcome is the one that the producer sent, on every partition and in
the offsets; without it nothing is decided, and the producer decides again. Neighbours take another
protocol and durability, and the run on the compiled broker the other points (`tests/halves.py`); in
one process every point is shown for both outcomes (`broker/transactions/test_ending.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError
from fencepost.broker.process import CRASH_POINT_VARIABLE, kill_at
from fencepost.broker.transactions.ending import (
    ABORT_POINTS,
    COMMIT_POINTS,
    CRASH_POINTS,
    EndPoints,
)
from tests.broker.node_stage import Stage
from tests.broker.raw import ClosedError, RawClient
from tests.broker.requests import Client, create_topic
from tests.halves import EVERY_CALL, half_of
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.wire import (
    NONE,
    WireProducer,
    committed_offset,
    committed_offsets,
    consume,
    describe,
    logged_states,
    retried,
    state_of,
    values,
)
from tools.fencepost_process import FencepostProcess

FEW_PARTITIONS: Final = (
    "--config=offsets.topic.num.partitions=2",
    "--config=transaction.state.log.num.partitions=2",
)
PARTITIONS: Final = (("refunds", 0), ("audit", 1))
MODES: Final = ("TV1-os", "TV2-fsync")
UNDECIDED: Final = (COMMIT_POINTS.before_prepare, ABORT_POINTS.before_prepare)


def open_transaction(client: Client, protocol: Protocol) -> WireProducer:
    """Over two topics and the offsets of a group, after one that was committed."""
    for topic in ("settlements", "refunds", "audit"):
        create_topic(client, topic, 2)
    one = WireProducer(client, "a", protocol).initialise()
    for offset in (1, 2):
        for topic, index in PARTITIONS:
            one.send(topic, b"%d" % offset, index=index)
        one.send_offsets("g", {("settlements", 0): offset})
        if offset == 1:
            one.commit()
    return one


def points_of(names: Iterable[str]) -> list[str]:
    """Every call of the hook in one commit or abort, as `name:ordinal`."""
    counts: Counter[str] = Counter()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(f"{name}:{counts[name]}")
    return numbered


def expected(points: EndPoints) -> list[str]:
    """One call per name, and one for the marker of each partition and of the group."""
    return points_of(
        name
        for name in points
        for _ in range(len(PARTITIONS) + 1 if name == points.marker_appended else 1)
    )


POINTS: Final = {False: expected(ABORT_POINTS), True: expected(COMMIT_POINTS)}


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_commit_and_an_abort_pass_every_named_crash_point(commit: bool) -> None:
    with Stage(durability="os") as stage:
        one = open_transaction(stage, TV1)
        calls: list[str] = []
        stage.node.runtime.crash_points = calls.append
        assert one.end(commit=commit) == NONE
    assert sorted(points_of(calls)) == sorted(POINTS[commit])


@contextmanager
def broker(data: Path, *options: str) -> Iterator[tuple[FencepostProcess, RawClient]]:
    process = FencepostProcess(data, options=[*FEW_PARTITIONS, "--log-level=warning", *options])
    try:
        with RawClient(process.bootstrap_servers) as client:
            yield process, client
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("point", "mode"),
    [
        (point, mode)
        for commit in (True, False)
        for number, point in half_of([*enumerate(POINTS[commit])], str(commit))
        for mode in (MODES if EVERY_CALL else MODES[number // 2 % 2 :][:1])
    ],
)
def test_after_a_kill_at_any_point_of_an_end_the_prepare_record_decides_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, mode: str
) -> None:
    protocol, durability = (TV1, "os") if mode == "TV1-os" else (TV2, "fsync")
    commit = point in POINTS[True]
    # The transaction before this one has already passed the points of a commit.
    name, _, ordinal = point.partition(":")
    monkeypatch.setenv(CRASH_POINT_VARIABLE, f"{name}:{int(ordinal) + times_passed(name)}")
    with broker(tmp_path, f"--durability={durability}") as (process, client):
        one = open_transaction(client, protocol)
        with pytest.raises(ClosedError):
            one.end(commit=commit)
        assert process.process.stop() == -9
    monkeypatch.delenv(CRASH_POINT_VARIABLE)
    with broker(tmp_path, f"--durability={durability}") as (_, client):
        one.client = client
        check(client, one, commit=commit, decided=name not in UNDECIDED)


def times_passed(name: str) -> int:
    """How often the first commit has passed a point."""
    return sum(1 for point in POINTS[True] if point.startswith(f"{name}:"))


def check(client: Client, one: WireProducer, *, commit: bool, decided: bool) -> None:
    retried(client, lambda: int(describe_error(client)))
    if not decided:
        assert state_of(client, "a") == "Ongoing"
        for topic, index in PARTITIONS:
            assert values(client, topic, index=index) == [b"1"], "the outcome is not decided yet"
        (pending,) = committed_offsets(client, "g", "settlements", stable=True)
        assert pending.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    # A producer retries when its connection breaks.
    retried(client, lambda: one.end(commit=commit))
    outcome = "Commit" if commit else "Abort"
    assert logged_states(client, "a")[-2:] == [f"Prepare{outcome}", f"Complete{outcome}"]
    for topic, index in PARTITIONS:
        seen = consume(client, topic, index=index)
        assert seen.values == [b"1", b"2"][: 2 if commit else 1]
        kinds = [kind for _, kind in seen.markers]
        assert kinds[0] is True
        assert set(kinds[1:]) == {commit}, "a marker may be repeated, but never contradicted"
        everything = values(client, topic, index=index, committed=False)
        assert everything == [b"1", b"2"]
    assert committed_offset(client, "g", "settlements") == (2 if commit else 1)
    for topic, index in PARTITIONS:
        one.send(topic, b"3", index=index)
    one.send_offsets("g", {("settlements", 0): 3})
    one.commit()
    for topic, index in PARTITIONS:
        assert values(client, topic, index=index)[-1] == b"3"
    assert committed_offset(client, "g", "settlements") == 3


def describe_error(client: Client) -> int:
    return int(describe(client, "a").error_code)


@pytest.mark.parametrize("wanted", ["", "commit.no-such-point", "commit.prepare-durable:x", ":1"])
def test_an_unknown_crash_point_is_refused_with_a_message(wanted: str) -> None:
    with pytest.raises(ConfigError, match="is not a crash point"):
        kill_at(wanted)


def test_a_crash_point_ignores_other_points_and_earlier_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: killed.append(number))
    reached = kill_at("abort.marker-appended:2")
    for point in (*CRASH_POINTS, *CRASH_POINTS):
        reached(point)
    assert killed == [9]

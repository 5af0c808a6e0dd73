"""The control socket with wrong, slow and many clients: each gets a sentence, and none hangs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.cluster.parent import control
from fencepost.cluster.parent.control import MAX_COMMAND_BYTES, send_command, socket_path
from tests.testing.test_cluster import states

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Iterator[fencepost.Cluster]:
    with fencepost.Cluster(3) as made:
        yield made


@pytest.fixture
def cluster(shared: fencepost.Cluster) -> Iterator[fencepost.Cluster]:
    """The shared cluster, with three brokers that serve before and after a test."""
    assert states(shared) == ["serving"] * 3
    yield shared
    assert states(shared) == ["serving"] * 3


def opened(cluster: fencepost.Cluster) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    with socket_path(str(cluster.data)) as path:
        connection.connect(path)
    return connection


def say(cluster: fencepost.Cluster, line: bytes, *, ends: bool = False) -> str:
    """The error that a line gets."""
    with opened(cluster) as connection:
        connection.sendall(line)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        answer = json.loads(connection.makefile("rb").readline())
    assert answer.keys() == {"error"}
    return str(answer["error"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"do": "explode", "broker": 1}\n', "There is no command"),
        (b'{"broker": 1}\n', "There is no command"),
        (b'{"do": ["kill"], "broker": 1}\n', "There is no command"),
        (b'{"do": "kill"}\n', "The id of a broker is a number, not None."),
        (b'{"do": "kill", "broker": true}\n', "The id of a broker is a number, not True."),
        (b'{"do": "kill", "broker": 1e400}\n', "The id of a broker is a number, not inf."),
        (b'{"do": "kill", "broker": -1}\n', "There is no broker -1"),
        (b'{"do": "fault", "broker": 1}\n', "A broker has no command"),
        (b'{"do": "fault", "broker": 1, "id": 1, "fault": {}}\n', "This is not a fault"),
        (b'{"do": "die", "broker": 1, "at": "nowhere"}\n', "nowhere"),
        (b'{"do": "die", "broker": 1, "at": "nowhere", "number": 99}\n', "nowhere"),
        (b"[]\n", "A command is a JSON object."),
        (b"\n", "not a line of JSON"),
        (b"\xff\xfe{}\n", "not a line of JSON"),
        (b"[" * (MAX_COMMAND_BYTES - 1) + b"\n", "not a line of JSON"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else None,
)
def test_what_is_no_command_gets_a_sentence(
    cluster: fencepost.Cluster, line: bytes, said: str
) -> None:
    assert said in say(cluster, line)


def test_a_command_that_is_too_long_is_not_read(cluster: fencepost.Cluster) -> None:
    with opened(cluster) as connection, suppress(ConnectionError):
        connection.sendall(b"x" * (4 * MAX_COMMAND_BYTES) + b"\n")
        assert b"not a line of JSON" in connection.makefile("rb").readline()


def test_half_a_line_has_no_effect(cluster: fencepost.Cluster) -> None:
    assert "not a line of JSON" in say(cluster, b'{"do": "kill", "broker": 1', ends=True)
    with opened(cluster) as connection:
        connection.sendall(b'{"do": "kill", ')
    assert states(cluster) == ["serving"] * 3


def test_a_hundred_silent_connections_keep_nobody_from_commanding(
    cluster: fencepost.Cluster,
) -> None:
    with ExitStack() as silent:
        for _ in range(100):
            silent.enter_context(opened(cluster))
        assert states(cluster) == ["serving"] * 3
        cluster.rebalance()


def test_silent_connections_are_closed_and_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(control, "SILENCE_SECONDS", 0.2)
    unused: Any = None

    async def serve() -> None:
        server = control.ControlServer(unused, unused)
        await server.start(str(tmp_path))
        path = str(tmp_path / control.SOCKET)
        silent = [await asyncio.open_unix_connection(path) for _ in range(4)]
        answers = [json.loads(await reader.readline())["error"] for reader, _ in silent]
        assert answers[:3] == ["No command came within 0.2 s."] * 3
        assert answers[3] == "More than 3 commands wait; try again later."
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"[]\n")
        assert b"A command is a JSON object" in await reader.readline()
        for _, each in (*silent, (reader, writer)):
            each.close()
        await server.stop(str(tmp_path))
        assert not (tmp_path / control.SOCKET).exists()

    asyncio.run(serve())


def test_rolls_of_one_broker_at_once_happen_one_after_the_other(cluster: fencepost.Cluster) -> None:
    before = cluster.brokers[1].restarts
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(cluster.roll, (2, 2)))
    assert cluster.brokers[1].restarts == before + 2


def test_two_rolls_of_all_brokers_at_once_never_stop_two_of_them(
    cluster: fencepost.Cluster,
) -> None:
    before = [each.restarts for each in cluster.brokers]
    most = 0
    with ThreadPoolExecutor(2) as pool:
        rolls = [pool.submit(cluster.roll) for _ in range(2)]
        while not all(each.done() for each in rolls):
            away = [each for each in states(cluster) if each != "serving"]
            most = max(most, len(away))
            time.sleep(0.005)
        for each in rolls:
            each.result()
    assert most == 1
    assert [each.restarts for each in cluster.brokers] == [each + 2 for each in before]


def test_a_kill_during_a_roll_wins_and_the_roll_says_so(cluster: fencepost.Cluster) -> None:
    rolled: list[BaseException] = []

    def roll() -> None:
        try:
            cluster.roll(3)
        except FencepostError as problem:
            rolled.append(problem)

    thread = threading.Thread(target=roll)
    thread.start()
    while states(cluster)[2] == "serving":
        time.sleep(0.005)  # Until it stops or starts again.
    cluster.kill(3)
    thread.join(60)
    try:
        (problem,) = rolled
        assert "Broker 3 was killed by another command, and stays dead" in str(problem)
        assert states(cluster) == ["serving", "serving", "dead"]
    finally:
        cluster.restart(3)


def test_a_restart_leaves_a_serving_broker_as_it_is(cluster: fencepost.Cluster) -> None:
    before = cluster.brokers
    cluster.restart(1)
    assert cluster.brokers == before


def test_a_restart_ends_when_the_broker_is_killed_meanwhile(cluster: fencepost.Cluster) -> None:
    cluster.kill(1)
    with ThreadPoolExecutor(1) as pool:
        restart = pool.submit(cluster.restart, 1)
        while states(cluster)[0] == "dead":
            time.sleep(0.01)
        cluster.kill(1)
        with pytest.raises(FencepostError, match="Broker 1 was killed by another command"):
            restart.result(60)
    cluster.restart(1)


def test_two_threads_that_kill_and_restart_one_broker_both_come_to_an_end(
    cluster: fencepost.Cluster,
) -> None:
    def use(number: int) -> None:
        for _ in range(2):
            cluster.kill(2)
            with suppress(FencepostError):  # Killed by the other thread.
                cluster.restart(2)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(use, range(2)))
    cluster.restart(2)


def test_a_start_says_why_it_cannot_have_a_control_socket(tmp_path: Path) -> None:
    (tmp_path / control.SOCKET).mkdir()
    with pytest.raises(ConfigError, match=r"The control socket .* cannot be created"):
        fencepost.Cluster(1, data=tmp_path).start()
    (tmp_path / control.SOCKET).rmdir()
    with fencepost.Cluster(1, data=tmp_path) as cluster:
        assert states(cluster) == ["serving"]


# -- a cluster that stops
# ------------------------------------------------------------------------------------------


def test_a_command_to_a_cluster_that_stops_gets_a_sentence() -> None:
    cluster = fencepost.Cluster(2, config={"broker.session.timeout.ms": 60_000})
    cluster.start()
    data, process = str(cluster.data), cluster._process
    assert process is not None
    pid = cluster.brokers[1].pid
    assert pid is not None
    try:
        # A broker that stands still carries no change out, so `kill` waits.
        os.kill(pid, signal.SIGSTOP)
        with ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(cluster.kill, 1)
            unsent = pool.submit(cluster.roll, 2)
            while states(cluster)[0] != "dead":
                time.sleep(0.01)
            process._process.send_signal(signal.SIGTERM)
            with pytest.raises(FencepostError, match=r"cluster is stopping: kill may not be"):
                waiting.result(60)
            with pytest.raises(FencepostError, match=r"The cluster is stopping|does not serve"):
                unsent.result(60)
        with pytest.raises(FencepostError, match="The cluster is stopping"):
            send_command(data, {"do": "rebalance"})
        assert [each.state for each in cluster.brokers] == ["dead", "stopping"]
    finally:
        os.kill(pid, signal.SIGCONT)
        cluster.close()


def test_a_cluster_says_what_is_wrong_when_it_is_entered_twice_or_used_after_its_end() -> None:
    with fencepost.Cluster(1) as cluster:
        with pytest.raises(FencepostError, match="The cluster is already running"):
            cluster.__enter__()
        assert states(cluster) == ["serving"]
    for use in (cluster.kill, cluster.restart, cluster.roll, cluster.pause, cluster.down):
        with pytest.raises(FencepostError, match="The cluster is not running"):
            use(1)
    with pytest.raises(FencepostError, match="The cluster is not running"):
        cluster.move("orders", 0, 1)
    cluster.close()
    with cluster:
        assert states(cluster) == ["serving"]

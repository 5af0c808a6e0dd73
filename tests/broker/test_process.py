"""`fencepost serve` as a real process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError
from fencepost.broker.process import new_event_loop, stop_on_failed_callback
from fencepost.broker.settings.refusals import refuse_remote
from fencepost.broker.storage.directory_lock import DirectoryLock
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.raw import ClosedError, RawClient
from tests.broker.requests import batch_of, create_topic, produce, produce_request, read_topic
from tests.cli.running import fencepost_command
from tests.transactions.requests import init_request
from tools.fencepost_process import ROOT, FencepostProcess

PATIENCE_SECONDS = 30


def run_serve(data: Path, *options: str, python: tuple[str, ...] = ()) -> Any:
    """Runs a start that fails: in this process, if no options for Python are given."""
    arguments = ["serve", "--data", str(data), *options]
    if "--listen" not in options:
        arguments += ["--listen", "127.0.0.1:0"]
    if not python:
        return fencepost_command(*arguments)
    command = [sys.executable, *python, "-m", "fencepost", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment
    )


def refusal(data: Path, *options: str, python: tuple[str, ...] = ()) -> str:
    """The line that a refused start prints."""
    ended = run_serve(data, *options, python=python)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    lines: list[str] = ended.stderr.splitlines()
    (line,) = [line for line in lines if line.startswith("fencepost: ")]
    assert "Traceback" not in ended.stderr
    return line


@contextmanager
def client_of(process: FencepostProcess) -> Iterator[RawClient]:
    with RawClient(process.bootstrap_servers) as client:
        yield client


# -- start and stop --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_broker_cleanly_and_the_next_start_has_everything(
    tmp_path: Path, number: signal.Signals
) -> None:
    first = FencepostProcess(tmp_path)
    with client_of(first) as client:
        create_topic(client, "kept", 2)
        produce(client, "kept", batch_of(b"value"), index=1)
    os.kill(first.process.pid, number)
    assert first.stop() == 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    with FencepostProcess(tmp_path) as second, client_of(second) as client:
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        assert read_topic(client, "kept", 1) == [b"value"]


def test_port_zero_is_announced_as_the_actual_port(tmp_path: Path) -> None:
    with FencepostProcess(tmp_path, listen="127.0.0.1:0") as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        ready = [line for line in broker.process.output.splitlines() if "ready" in line]
        assert ready == [f"fencepost is ready at {broker.bootstrap_servers}"]
        with client_of(broker) as client:
            (node,) = client.call(ApiKey.METADATA, 9, MetadataRequest(topics=[])).brokers
            assert (node.host, node.port) == (host, int(port))


def test_the_first_line_says_that_it_is_ready_and_limits_follow(tmp_path: Path) -> None:
    options = ["--config", "max.connections=2147483647"]  # More than any process may open.
    with FencepostProcess(tmp_path, options=options) as broker:
        broker.process.wait_for_line(lambda line: line if "accepting at most" in line else None, 60)
        first = broker.process.output.splitlines()[0]
        assert first == f"fencepost is ready at {broker.bootstrap_servers}"


def test_a_stop_during_requests_is_clean(tmp_path: Path) -> None:
    broker = FencepostProcess(tmp_path, options=["--durability", "fsync"])
    with client_of(broker) as client:
        create_topic(client, "busy")
        for _ in range(50):
            client.send(ApiKey.METADATA, 9, MetadataRequest(topics=None))
        assert broker.stop() == 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_second_broker_on_the_same_data_is_refused_and_the_first_one_continues(
    tmp_path: Path,
) -> None:
    with FencepostProcess(tmp_path) as first, client_of(first) as client:
        line = refusal(tmp_path)
        assert str(tmp_path) in line
        assert f"process {first.process.pid}" in line
        assert create_topic(client, "still-here")


def test_a_port_in_use_is_refused_and_the_data_stay_clean(tmp_path: Path) -> None:
    with FencepostProcess(tmp_path) as first, client_of(first) as client:
        create_topic(client, "kept")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refusal(tmp_path, "--listen", address)
        assert f"{address} cannot be listened on: Address already in use" in line
        assert "another address with --listen" in line
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    with FencepostProcess(tmp_path) as again, client_of(again) as client:
        assert read_topic(client, "kept") == []


@contextmanager
def taken_address() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_failed_start_leaves_no_directory_behind(tmp_path: Path) -> None:
    with taken_address() as address:
        refusal(tmp_path / "new" / "data", "--listen", address)
    assert list(tmp_path.iterdir()) == []
    # Here the directory has been created before the failure; it is removed with its parents.
    refusal(tmp_path / "new" / "data", "--trace", str(tmp_path / "nowhere" / "trace"))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_start_removes_nothing_that_existed_before(tmp_path: Path) -> None:
    data = tmp_path / "there" / "data"
    data.parent.mkdir()
    (data.parent / "note").write_text("mine")
    refusal(data, "--trace", str(tmp_path / "nowhere" / "trace"))
    assert [path.name for path in data.parent.iterdir()] == ["note"]
    data.mkdir()
    (data / "note").write_text("mine")
    refusal(data, "--trace", str(tmp_path / "nowhere" / "trace"))
    assert (data / "note").read_text() == "mine"


def test_a_failed_lock_attempt_removes_nothing(tmp_path: Path) -> None:
    holder = DirectoryLock(str(tmp_path / "data"))
    (tmp_path / "data" / "log").write_text("records")
    with pytest.raises(ConfigError, match="in use"):
        DirectoryLock(str(tmp_path / "data"))
    assert (tmp_path / "data" / "log").exists()
    holder.release()
    DirectoryLock(str(tmp_path / "data")).release_unused()
    assert (tmp_path / "data" / "log").exists()


def test_a_signal_during_the_start_stops_the_broker_immediately(tmp_path: Path) -> None:
    """A start after a crash may take long, so the user can interrupt it."""
    script = (
        "import os, signal, sys\n"
        "from fencepost.broker import node, process\n"
        "class Slow(node.Node):\n"
        "    async def start(self, *_):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        while True: pass\n"
        "node.Node = Slow\n"
        "process.run(listen='127.0.0.1:0', data=sys.argv[1], announce=print)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert ended.returncode == 130
    assert ended.stderr == "fencepost: stopped while starting; nothing is lost\n"


@pytest.mark.parametrize("problem", [AssertionError("a rule"), FileNotFoundError("a mishap")])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop])
def test_an_uncaught_exception_in_a_callback_stops_the_process(
    problem: Exception, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    reasons: list[str] = []

    async def fail_in_a_timer() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(stop_on_failed_callback(reasons.append))
        loop.call_later(0, raise_it)
        await asyncio.sleep(0.01)

    def raise_it() -> None:
        raise problem

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(fail_in_a_timer())
    assert len(reasons) == 1


def test_a_socket_error_reported_by_the_loop_does_not_stop_the_process() -> None:
    reasons: list[str] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(stop_on_failed_callback(reasons.append))
    loop.call_exception_handler({"message": "accept", "exception": OSError(24, "too many")})
    loop.close()
    assert reasons == []


FAILS_WHEN_DURABLE = """
import sys
from fencepost.broker.runtime import Runtime

real = Runtime.when_durable
def when_durable(runtime, partition, end_offset, callback):
    def fail():
        raise FileNotFoundError("planted")
    real(runtime, partition, end_offset, fail if partition.name.topic == "broken" else callback)
Runtime.when_durable = when_durable
sys.argv[1:3] = []
from fencepost.cli.main import main
main()
"""


@pytest.mark.interpreted
def test_a_failing_continuation_stops_the_broker_with_a_reason_and_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    python = (sys.executable, "-c", FAILS_WHEN_DURABLE)
    broker = FencepostProcess(tmp_path, options=["--durability", "fsync"], python=python)
    with client_of(broker) as client:
        create_topic(client, "sound")
        produce(client, "sound", batch_of(b"kept"))
        create_topic(client, "broken")
        with pytest.raises(ClosedError):
            produce(client, "broken", batch_of(b"never acknowledged"))
    assert broker.stop() == 70
    reason = "a request that waited for durability could not continue: FileNotFoundError: planted"
    assert reason in broker.process.output
    with FencepostProcess(tmp_path) as again, client_of(again) as client:
        assert read_topic(client, "sound") == [b"kept"]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:0", "[::]:0", "example.invalid:0"])
def test_a_remote_address_is_refused(tmp_path: Path, address: str) -> None:
    host = address.rpartition(":")[0].strip("[]")
    with pytest.raises(ConfigError, match="allow-remote"):
        refuse_remote(host, allow_remote=False)
    refuse_remote(host, allow_remote=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_is_always_allowed(host: str) -> None:
    refuse_remote(host, allow_remote=False)


def test_listening_on_every_address_needs_permission_and_an_advertised_name(tmp_path: Path) -> None:
    everywhere = ["--listen", ":0", "--config", "advertised.listeners=PLAINTEXT://localhost:0"]
    assert "Every address of this machine" in refusal(tmp_path / "data", *everywhere)
    options = ["--allow-remote", *everywhere[2:]]
    with FencepostProcess(tmp_path / "data", listen=":0", options=options) as broker:
        assert broker.bootstrap_servers.startswith("localhost:")
        assert f"advertised to clients as {broker.bootstrap_servers}" in broker.process.output
        port = broker.bootstrap_servers.rpartition(":")[2]
        with RawClient(f"127.0.0.1:{port}") as client:
            (node,) = client.call(ApiKey.METADATA, 9, MetadataRequest(topics=[])).brokers
            assert (node.host, node.port) == ("localhost", int(port))


def test_a_remote_address_is_refused_before_the_data_is_touched(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert "--allow-remote" in refusal(data, "--listen", "192.0.2.1:0")
    assert not data.exists()


def test_assertions_may_not_be_disabled(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert "python -O" in refusal(data, python=("-O",))
    assert not data.exists()


def test_an_unknown_setting_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    line = refusal(tmp_path / "data", "--config", "num.partition=3")
    assert "'num.partition'" in line
    assert "did you mean num.partitions?" in line


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "file"
    data.write_text("not a directory")
    assert f"{data} cannot be used: it is a file. Choose another one with --data." in refusal(data)


def test_a_trace_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "nowhere" / "trace.jsonl"
    assert str(trace) in refusal(tmp_path / "data", "--trace", str(trace))


def kafkas_directory(folder: Path) -> dict[str, bytes]:
    """A data directory as Apache Kafka leaves it after a clean stop."""
    files = {
        "meta.properties": b"version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\nnode.id=1\n"
        b"directory.id=Xnq4bBqQTu6hs0Z0KQAAAA\n",
        ".kafka_cleanshutdown": b'{"version":0,"brokerEpoch":4}',
        "recovery-point-offset-checkpoint": b"0\n1\norders 0 5\n",
        "log-start-offset-checkpoint": b"0\n0\n",
        "orders-0/00000000000000000000.log": b"",
        "orders-0/partition.metadata": b"version: 0\ntopic_id: Xnq4bBqQTu6hs0Z0KQAAAA",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return files


def test_a_data_directory_of_apache_kafka_is_refused_and_not_changed(tmp_path: Path) -> None:
    files = kafkas_directory(tmp_path)
    assert "Apache Kafka" in refusal(tmp_path, "--config", "node.id=1")
    left = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    assert left == files


def test_a_refused_start_keeps_the_clean_shutdown_marker(tmp_path: Path) -> None:
    FencepostProcess(tmp_path).stop()
    assert "node.id=1" in refusal(tmp_path, "--config", "node.id=7")
    assert (tmp_path / ".kafka_cleanshutdown").exists()


# -- settings and trace ----------------------------------------------------------------------------


def test_a_missing_settings_file_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "server.properties"
    assert str(missing) in refusal(tmp_path / "data", "--config-file", str(missing))


def test_the_trace_has_every_request_and_reply_as_a_line_of_json(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    options = ["--trace", str(trace)]
    with FencepostProcess(tmp_path / "data", options=options) as broker:
        with client_of(broker) as client:
            create_topic(client, "traced")
            produce(client, "traced", batch_of(b"a secret"))
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert lines.pop(0)["format"] == "fencepost-tap"
    shape = [(line["kind"], line["api"], line["api_version"], line["client_id"]) for line in lines]
    assert shape == [
        ("request", "CreateTopics", 7, "raw"),
        ("reply", "CreateTopics", 7, "raw"),
        ("request", "Produce", 11, "raw"),
        ("reply", "Produce", 11, "raw"),
    ]
    for line in lines:
        assert line.keys() >= {"time_us", "connection", "client", "correlation_id", "size_bytes"}
    (sent,) = lines[2]["body"]["topic_data"]
    assert sent["name"] == "traced"
    assert "secret" not in trace.read_text()


def test_the_trace_is_complete_after_a_kill(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    broker = FencepostProcess(tmp_path / "data", options=["--trace", str(trace)])
    with client_of(broker) as client:
        create_topic(client, "traced")
        broker.kill()
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert lines[-1]["kind"] == "reply"


# -- deletions -------------------------------------------------------------------------------------


def test_deleting_topics_during_transactional_writes_does_not_stop_syncs(tmp_path: Path) -> None:
    """In fsync mode, 30 times: the topic is deleted while a write waits for its coordinator."""
    with (
        FencepostProcess(tmp_path, options=["--durability", "fsync"]) as broker,
        client_of(broker) as client,
        client_of(broker) as admin,
    ):
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])
        client.call(ApiKey.FIND_COORDINATOR, 4, find)
        not_yet = ErrorCode.NOT_COORDINATOR  # Its topic is being created.
        while (
            producer := client.call(ApiKey.INIT_PRODUCER_ID, 5, init_request("x"))
        ).error_code == not_yet:
            pass
        assert producer.error_code == 0
        for number in range(30):
            topic = f"doomed-{number}"
            create_topic(admin, topic)
            batch = batch_of(
                b"value",
                producer_id=producer.producer_id,
                epoch=producer.producer_epoch,
                sequence=0,
                transactional=True,
            )
            write = produce_request(topic, batch, transactional_id="x")
            deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)])
            first, second = (client, admin) if number % 2 else (admin, client)
            for each in (first, second):
                if each is admin:
                    each.send(ApiKey.DELETE_TOPICS, 6, deletion)
                else:
                    each.send(ApiKey.PRODUCE, 12, write)
            assert admin.reply(ApiKey.DELETE_TOPICS, 6).responses[0].error_code == 0
            written = client.reply(ApiKey.PRODUCE, 12).responses[0].partition_responses[0]
            assert written.error_code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        create_topic(admin, "kept")
        assert produce(admin, "kept", batch_of(b"synced")).error_code == 0
        assert read_topic(admin, "kept") == [b"synced"]

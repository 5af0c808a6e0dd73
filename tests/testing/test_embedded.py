"""`fencepost.Broker` in users' tests."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fencepost
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from tools.fencepost_process import ROOT


@pytest.mark.parametrize(
    ("package", "heavy"), [("fencepost", "asyncio"), ("fencepost.spark", "pyspark")]
)
def test_a_package_lists_what_it_imports_on_first_use(package: str, heavy: str) -> None:
    code = (
        f"import sys, {package} as package\n"
        "print(*set(package.__all__) - set(dir(package)))\n"
        "print('__doc__' in dir(package))\n"
        f"print({heavy!r} in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment
    )
    missing, has_docstring, is_loaded = done.stdout.splitlines()
    assert (missing, has_docstring, is_loaded) == ("", "True", "False")


def test_settings_may_be_python_values() -> None:
    config = {
        "auto.create.topics.enable": False,
        "num.partitions": 3,
        "log.cleanup.policy": ["compact", "delete"],
        "log.retention.ms": None,
    }
    with fencepost.Broker(config=config) as broker:
        taken = broker.call(lambda node: node.config)
        assert taken.auto_create_topics_enable is False
        assert taken.num_partitions == 3
        assert taken.log_cleanup_policy == ("compact", "delete")
        assert taken.log_retention_ms is None


def test_data_and_trace_may_be_paths_and_are_kept_after_close(tmp_path: Path) -> None:
    data, trace = tmp_path / "data", tmp_path / "trace.jsonl"
    with fencepost.Broker(data=data, trace=trace):
        pass
    assert (data / "meta.properties").exists()
    assert trace.exists()


def test_a_temporary_data_folder_is_deleted_on_close_and_after_a_failed_start() -> None:
    with fencepost.Broker() as broker:
        assert broker.data is not None
        folder = Path(broker.data)
        assert (folder / "meta.properties").exists()
    assert not folder.exists()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        unlucky = fencepost.Broker(port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="Address already in use"):
            unlucky.start()
    assert unlucky.data is None


def test_a_broker_that_is_never_closed_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import fencepost\n"
        "secured = fencepost.Broker(security=fencepost.Security(tls=False))\n"
        "stopped, running, crashed = [fencepost.Broker() for _ in range(3)]\n"
        "for broker in (secured, stopped, running, crashed):\n"
        "    broker.start()\n"
        "    broker.snapshot()\n"
        "secured.stop()\n"
        "stopped.stop()\n"
        "crashed.crash()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)
    assert list(tmp_path.iterdir()) == []


def test_a_broker_keeps_its_port_across_restarts() -> None:
    with fencepost.Broker() as broker:
        address = broker.bootstrap_servers
        broker.restart()
        assert broker.bootstrap_servers == address
        broker.stop()
        broker.stop()
        broker.start()
        assert broker.bootstrap_servers == address


def test_using_a_stopped_broker_fails_and_explains_how_to_start_it() -> None:
    broker = fencepost.Broker()
    uses: list[Callable[[], str]] = [lambda: broker.bootstrap_servers, lambda: broker.call(repr)]
    for use in uses:
        with pytest.raises(FencepostError, match="not running: use `with Broker"):
            use()
    with broker, pytest.raises(FencepostError, match="already running"):
        broker.start()
    with pytest.raises(FencepostError, match="not running"):
        broker.call(repr)


def test_two_brokers_cannot_share_a_folder(tmp_path: Path) -> None:
    with (
        fencepost.Broker(data=tmp_path),
        pytest.raises(ConfigError, match="in use by another broker"),
    ):
        fencepost.Broker(data=tmp_path).start()


def test_errors_name_the_arguments_not_the_command_line_options(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, said in [
        ({"data": tmp_path / "file"}, "it is a file. Choose another one with data=."),
        ({"host": "0.0.0.0"}, "can be reached from other machines.*listen on 127.0.0.1 or"),
        ({"port": 99_999}, "host and port are '127.0.0.1:99999'"),
    ]:
        with pytest.raises(ConfigError, match=said) as caught:
            fencepost.Broker(**arguments).start()  # type: ignore[arg-type]
        assert "--" not in str(caught.value)
    with pytest.raises(TypeError, match="config must be a mapping"):
        fencepost.Broker(config="num.partitions=3")  # type: ignore[arg-type]


def test_a_setting_that_is_only_partly_honoured_logs_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with fencepost.Broker(config={"default.replication.factor": 3}):
        assert "default.replication.factor=3 has the effect of 1" in caplog.text


def in_a_child(use: Callable[[], None]) -> None:
    """Runs it in a forked process, which must exit successfully."""
    process = os.fork()
    if process == 0:
        try:
            use()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing of pytest may run in the child
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(process, 0)[1] == 0


pytestmark = pytest.mark.filterwarnings(
    # These tests are about forking beside a thread.
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


def test_a_forked_process_can_be_a_client_but_cannot_stop_the_broker() -> None:
    with fencepost.Broker() as broker:

        def use() -> None:
            with connect(broker.bootstrap_servers) as cluster:
                cluster.create_topics([NewTopic("from-the-child")])
            with pytest.raises(FencepostError, match="parent of this fork"):
                broker.call(repr)
            broker.stop()
            broker.close()

        in_a_child(use)
        assert broker.data is not None
        assert Path(broker.data, "meta.properties").exists()
        with connect(broker.bootstrap_servers) as cluster:
            assert "from-the-child" in cluster.metadata().topics


def test_a_forked_process_changes_neither_faults_nor_data_of_its_parents_broker() -> None:
    with fencepost.Broker() as broker:
        broker.produce("refunds", "s-1")
        fault = broker.faults.on("EndTxn").hold().optional()
        snapshot = broker.snapshot()
        uses: list[Callable[[], object]] = [
            lambda: broker.faults.on("EndTxn").lose_reply(),
            lambda: broker.faults.fired,
            lambda: fault.wait(0),
            lambda: fault.times(3),
            fault.remove,
            broker.faults.clear,
            broker.faults.check,
            lambda: broker.clock.advance(minutes=1),
            broker.snapshot,
        ]
        folders = len(broker._snapshots)

        def use() -> None:
            for each in uses:
                with pytest.raises(FencepostError, match="parent of this fork"):
                    each()
            assert len(broker._snapshots) == folders
            broker.stop()
            with pytest.raises(FencepostError, match="parent of this fork"):
                broker.restore(snapshot)

        in_a_child(use)
        broker.restart()
        assert [record.value for record in broker.committed("refunds")] == [b"s-1"]


def test_a_forked_process_does_not_hold_the_port_the_folder_or_a_connection() -> None:
    with fencepost.Broker() as broker, connect(broker.bootstrap_servers) as client:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as idle:
            client.metadata()  # By now the broker has accepted the idle one too.
            end, held = os.pipe()
            forked, child = os.pipe()
            process = os.fork()
            if process == 0:
                os.close(held)
                os.write(child, b".")
                os.read(end, 1)
                os._exit(0)
            os.close(end)
            # Until the child has run, it holds copies of everything.
            assert os.read(forked, 1) == b"."
            os.close(forked)
            os.close(child)
            broker.restart()
            assert idle.recv(1) == b"", "the connection was ended with the broker"
            assert client.metadata().brokers
            os.close(held)
            os.waitpid(process, 0)


def test_a_forked_process_may_start_its_own_broker() -> None:
    def use() -> None:
        with fencepost.Broker() as own, connect(own.bootstrap_servers) as cluster:
            assert cluster.metadata().brokers

    with fencepost.Broker():
        in_a_child(use)


@pytest.mark.skipif(
    (3, 12) <= sys.version_info[:3] < (3, 12, 3),
    reason="CPython 3.12.0 to 3.12.2 start no thread once the main thread has ended (gh-113964)",
)
def test_a_broker_that_was_not_closed_leaves_nothing_behind() -> None:
    script = "import fencepost; b = fencepost.Broker(); b.start(); print(b.data)"
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not Path(ended.stdout.strip()).exists()


def test_a_broker_can_be_used_inside_a_running_event_loop() -> None:
    async def use() -> str:
        with fencepost.Broker() as broker:
            return broker.bootstrap_servers

    assert asyncio.run(use())


# -- several threads
# ------------------------------------------------------------------------------------------


def in_threads(*functions: Callable[[], object]) -> list[object]:
    """The results or exceptions of calls that run at the same time."""
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return function()
        except FencepostError as problem:
            return problem

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


def test_if_several_threads_start_a_broker_it_starts_once() -> None:
    broker = fencepost.Broker()
    try:
        outcomes = in_threads(*[broker.start] * 4)
        assert outcomes.count(None) == 1
        assert {str(each) for each in outcomes if each} == {"The broker is already running."}
        assert broker.data is not None
        assert Path(broker.data).exists()
        with connect(broker.bootstrap_servers) as client:
            client.create_topics([NewTopic("orders")])
    finally:
        broker.close()


def test_if_several_threads_close_a_broker_each_returns_after_it_has_stopped() -> None:
    broker = fencepost.Broker()
    broker.start()
    thread = broker._thread
    assert thread is not None
    assert broker.data is not None
    folder = Path(broker.data)

    def close() -> bool:
        broker.close()
        return thread.is_alive() or folder.exists()

    assert in_threads(*[close] * 4) == [False] * 4


def test_a_function_on_the_brokers_loop_may_call_another() -> None:
    with fencepost.Broker() as broker:
        assert broker.call(lambda _: broker.call(lambda node: node.config.node_id)) == 1


def on_its_loop(broker: fencepost.Broker, use: Callable[[], None]) -> None:
    broker.call(lambda _: use())


def test_a_broker_cannot_be_stopped_from_its_own_loop_and_loses_nothing_by_it() -> None:
    with fencepost.Broker() as broker:
        broker.produce("refunds", "s-1")
        snapshot = broker.snapshot()
        uses: list[Callable[[], None]] = [
            broker.stop,
            broker.restart,
            broker.close,
            lambda: broker.restore(snapshot),
        ]
        for use in uses:
            with pytest.raises(FencepostError, match="use another thread"):
                on_its_loop(broker, use)
        broker.restore(snapshot)
        assert len(broker.committed("refunds")) == 1


def test_calls_to_a_crashed_broker_raise_the_cause() -> None:
    broker = fencepost.Broker()
    broker.start()
    thread = broker._thread
    assert thread is not None
    broker.call(lambda node: node.fatal("the disk is gone"))
    thread.join()
    with pytest.raises(FencepostError, match="stopped by itself: the disk is gone"):
        broker.call(lambda node: node.config.node_id)
    with pytest.raises(FencepostError, match="stopped by itself: the disk is gone"):
        broker.close()

"""A broker inside a Python program: thread, event loop, temporary directory, free port.

    with fencepost.Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

It runs the same node as `fencepost serve`. `faults` makes requests fail, wait and vanish. Any
thread may start, stop or use the broker, except that the loop's thread may not stop it.

A broker belongs to the process that started it. A forked child (`multiprocessing`) may use it as a
client; there, `stop` and `close` do nothing. The child replaces its copies of the broker's
descriptors, which would otherwise keep the port, the directory lock and the connections open after
the broker has stopped. A broker that is not closed is closed when the interpreter exits.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from fencepost.base.arguments import checked
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.system import SystemDisk
from fencepost.broker.node import Node
from fencepost.broker.process import (
    make_node,
    new_event_loop,
    parse_overrides,
    refuse_taken_address,
    serve_metrics,
    stop_on_failed_callback,
)
from fencepost.broker.settings.config import BrokerConfig, given_settings
from fencepost.broker.settings.refusals import (
    metrics_address,
    refuse_open_listeners,
    refuse_optimised_python,
    refuse_remote,
)
from fencepost.broker.storage.directory_lock import DirectoryLock
from fencepost.testing.arguments import (
    bracketed,
    in_words_of_arguments,
    path_or_none,
)
from fencepost.testing.clock import Clock, MovedClock
from fencepost.testing.crashing import BrokerCrashed, Crash, CrashableDisk
from fencepost.testing.faults import Faults
from fencepost.testing.folders import delete_folder, make_folder
from fencepost.testing.security import Secured, SecuredContents, Security

if TYPE_CHECKING:
    from fencepost.broker.metrics.endpoint import MetricsEndpoint
    from fencepost.broker.security.audit import Denial
    from fencepost.client.blocking import Cluster as Client

log = logging.getLogger(__name__)

T = TypeVar("T")

_LEAVING_SECONDS: Final = 1.0
"""How long `restore` waits for the connections of clients that were closed."""

_DENIALS: Final = 10_000
START_TIMEOUT_SECONDS: Final = 60
"""Enough for a large log after a crash; an empty directory takes milliseconds."""


class Snapshot:
    """What a broker contained at one moment, and how far its time had been moved."""

    def __init__(self, folder: str, broker: Broker, offset_ms: int) -> None:
        self.folder = folder
        self.broker = broker
        self.offset_ms = offset_ms


@checked
class Broker(SecuredContents):
    """An embedded broker. After `stop` it can be started again, with the same data and port."""

    def __init__(
        self,
        *,
        data: str | os.PathLike[str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        durability: str = "os",
        config: Mapping[str, object] | None = None,
        trace: str | os.PathLike[str] | None = None,
        metrics: str | None = None,
        security: Security | None = None,
    ) -> None:
        """`metrics` is the address for Prometheus and health checks, such as `127.0.0.1:0`."""
        self.data = path_or_none(data)
        self._host = host
        self._port = port
        self._durability = durability
        self._overrides = parse_overrides(config or {})
        self._secured = None
        if security is not None:
            self._secured = Secured(security, host=host, config=config or {})
            self._secured.refuse_kept_data(self.data)
        self._has_listeners = security is not None or "listeners" in (config or {})
        self._trace = path_or_none(trace)
        self._metrics = metrics
        self._endpoint: MetricsEndpoint | None = None
        self.faults = Faults(self.call, self._crash_here)
        """What goes wrong on demand."""
        self._denials: deque[Denial] = deque(maxlen=_DENIALS)
        self._moved_clock = MovedClock()
        self.clock = Clock(self._moved_clock, self.call, self._refuse_to_advance)
        """Its time, which a test moves forwards."""
        self._disk: CrashableDisk | None = None
        self._has_crashed = False
        self._crashes = 0
        self._recovered = threading.Event()
        """Not set while the broker recovers by itself from a crash."""
        self._recovered.set()
        self._snapshots: list[str] = []
        self._temporary: str | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._node: Node | None = None
        self._address = ""
        self._failure: str | None = None
        self._discard = False
        self._lock: DirectoryLock | None = None
        self._process_id = os.getpid()
        self._changing = threading.RLock()
        """Held by the thread that starts or stops the broker."""
        self._calls: set[Future[None]] = set()
        """Pending calls of `call`, cancelled if the loop ends first."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"at {self._address}" if self._thread else "stopped"
        return f"<fencepost.Broker {state}>"

    def __dir__(self) -> list[str]:
        """What is for tests; `node` and `call` are for those of fencepost itself."""
        return [name for name in super().__dir__() if name not in ("call", "node")]

    @property
    def bootstrap_servers(self) -> str:
        """The value for a client's `bootstrap.servers`."""
        self._require_running()
        return self._address

    def _connect(self) -> Client:
        if threading.current_thread() is self._thread:
            raise FencepostError(
                "This function runs on the broker's thread, which would wait for itself: look at "
                "the broker from the thread of the test."
            )
        return super()._connect()

    @property
    def denials(self) -> list[Denial]:
        """What the authorizer has denied since the broker was made, in order, of all clients.

        The last 10,000 of them. A request may ask for several rights, and each denied one counts;
        what a reply leaves out silently, such as a topic in a list, does not.
        """
        return self.call(lambda _: list(self._denials))

    @property
    def metrics_url(self) -> str:
        """Where metrics and health checks are served: append `/metrics`, `/healthz`, `/readyz`."""
        self._require_running()
        if self._metrics is None:
            raise FencepostError(
                'This broker serves no metrics: use `Broker(metrics="127.0.0.1:0")`.'
            )
        return f"http://{self._metrics}"

    def _await_recovery(self) -> None:
        """Returns at once unless the broker recovers by itself, as `crash(restart=True)` wants."""
        if not self._is_inherited and threading.current_thread() is not self._thread:
            self._recovered.wait(START_TIMEOUT_SECONDS)

    def _require_running(self) -> None:
        self._await_recovery()
        if self._has_crashed:
            raise FencepostError(
                "The broker has crashed, as the test wanted: `restart()` recovers it on the same "
                "data and port."
            )
        if not self._thread:
            raise FencepostError("The broker is not running: use `with Broker() as broker:`.")

    @property
    def node(self) -> Node:
        """The node, for tests of fencepost itself; use it only inside `call`."""
        assert self._node is not None, "the broker is not running"
        return self._node

    def start(self) -> None:
        """Starts the broker and returns when it accepts requests."""
        if self._is_inherited:
            # A thread of the parent process may have held the lock during the fork.
            self._changing = threading.RLock()
        with self._changing:
            self._start_once()

    def _start_once(self) -> None:
        if self._has_crashed:
            self._stop()
        if self._thread is not None:
            raise FencepostError("The broker is already running.")
        refuse_optimised_python()
        self._process_id = os.getpid()
        _running.add(self)
        try:
            self._start()
        except BaseException as problem:
            _running.discard(self)
            if isinstance(problem, ConfigError):
                raise ConfigError(in_words_of_arguments(str(problem))) from problem
            raise

    def _start(self) -> None:
        if not self._has_listeners:
            refuse_remote(self._host, allow_remote=False)
        if self._secured is not None:
            self._secured.prepare()
        if self.data is None:
            self.data = self._temporary = make_folder("fencepost-")
        ready: Future[str] = Future()
        thread = threading.Thread(
            target=self._run, args=(self.data, ready), name="fencepost-broker", daemon=True
        )
        thread.start()
        try:
            self._address = ready.result(START_TIMEOUT_SECONDS)
        except BaseException:
            # Interrupted, or timed out: the thread must not serve if it still gets that far.
            self._wake(thread)
            thread.join(1)
            self._delete_temporary()
            raise
        self._thread = thread
        # A restart uses the same port, so that clients reconnect.
        self._port = int(self._address.rpartition(":")[2])
        if self._secured is not None:
            try:
                self._secured.establish(self._address)
            except BaseException:
                self._stop()
                self._delete_temporary()
                raise

    def stop(self) -> None:
        """Stops cleanly; the data are kept until `close`."""
        if self._is_inherited:
            self._thread = None
            _running.discard(self)
            return
        self._refuse_own_thread()
        with self._changing:
            self._stop()

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise FencepostError(
                "The broker cannot be stopped from its own loop: use another thread."
            )

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        _running.discard(self)
        if thread is None:
            return
        self._wake(thread)
        thread.join()
        self._has_crashed = False  # Not before: what fails until then is the crash.
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise FencepostError(f"The broker stopped by itself: {failure}")

    def _wake(self, thread: threading.Thread) -> None:
        if self._loop is not None and self._stopping is not None and thread.is_alive():
            with contextlib.suppress(RuntimeError):  # A fatal failure has ended the loop.
                self._loop.call_soon_threadsafe(self._stopping.set)

    @property
    def _is_inherited(self) -> bool:
        """Whether this object is a copy in a forked child."""
        return os.getpid() != self._process_id

    def _refuse_inherited(self) -> None:
        if self._is_inherited:
            raise FencepostError(
                f"The broker runs in process {self._process_id}, the parent of this fork: use it "
                "as a client, or start another broker here."
            )

    def restart(self) -> None:
        """Starts again on the same data and port; stops cleanly before, unless it has crashed."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """Crashes as if it were killed with -9; returns when it is down. `restart()` recovers it.

        Connections are cut, and nothing more is written, not even that it has stopped. To crash
        at a request or at a step of a commit, use `faults`.
        """
        self._require_running()
        thread = self._thread
        if threading.current_thread() is thread:
            raise FencepostError(
                "The broker cannot be crashed from its own thread: use "
                '`faults.on("EndTxn").crash()`, or another thread.'
            )
        self.call(lambda _: self._crash_here(False))
        assert thread is not None
        thread.join()

    def _refuse_to_advance(self) -> None:
        self._require_running()
        if threading.current_thread() is self._thread:
            raise FencepostError(
                "Time cannot pass from the broker's own thread, which has to do what is due: use "
                "the thread of the test."
            )
        if self.faults.held:
            raise FencepostError(
                "A fault holds a request, which would take effect after the time has passed "
                "although it came before: call `faults.release()` first."
            )

    # -- snapshots --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Keeps what the broker contains now, for `restore`. Clients may stay connected.

        It is a copy of the directory, taken between two requests: open transactions are in it, and
        what is held by a fault is not. It is deleted with the broker.
        """
        self._require_running()
        self._refuse_inherited()
        assert self.data is not None
        source, folder = self.data, make_folder("fencepost-snapshot-")
        self._snapshots.append(folder)
        self.call(lambda _: copy_directory(source, folder))
        return Snapshot(folder, self, self._moved_clock.offset_ms)

    def restore(self, snapshot: Snapshot) -> None:
        """Goes back to a snapshot, and starts again on the same port.

        What `clock` has advanced since is taken back, too: otherwise an open transaction of the
        snapshot would time out at once, and records would be past their retention.

        No client may be connected: it would see offsets and epochs go back, which never happens on
        Kafka.
        """
        self._refuse_inherited()
        self._refuse_own_thread()
        self._await_recovery()
        if snapshot.broker is not self or not os.path.isdir(snapshot.folder):
            raise FencepostError(
                "This snapshot is not one of this broker, or was deleted when it was closed: take "
                "another one with `snapshot()`."
            )
        if self._thread is not None and not self._has_crashed:
            self._refuse_connected()
            self.crash()  # What is thrown away next need not be closed with care.
        with self._changing:
            self.stop()
            assert self.data is not None
            copy_directory(snapshot.folder, self.data)
            self._moved_clock.offset_ms = snapshot.offset_ms
            self.start()

    def _refuse_connected(self) -> None:
        """A client that was closed a moment ago may still be counted."""
        deadline = time.monotonic() + _LEAVING_SECONDS
        while count := self.call(lambda node: node.connection_count):
            if time.monotonic() > deadline:
                connections = "1 connection is" if count == 1 else f"{count} connections are"
                raise FencepostError(
                    f"{connections} open: close all producers, consumers and admin clients before "
                    "restore(), and create them again after it. They would see offsets and epochs "
                    "go back."
                )
            time.sleep(0.005)

    def _crash_here(self, restart: bool) -> None:
        """On the broker's thread: from now on nothing that it does has an effect."""
        assert self._disk is not None
        assert self._stopping is not None
        self._disk.cut_off()
        if restart:
            self._recovered.clear()
        self._has_crashed = True
        self._crashes += 1
        self._stopping.set()
        self.node.abort_connections()
        if restart:
            threading.Thread(target=self._restart_after_crash, daemon=True).start()

    def _restart_after_crash(self) -> None:
        try:
            with self._changing:
                if self._has_crashed:  # Otherwise somebody else has restarted or closed it.
                    self.restart()
        finally:
            self._recovered.set()

    def close(self) -> None:
        """Stops, and deletes the data if they are in a temporary directory."""
        if self._is_inherited:
            self.stop()
            self._delete_temporary()
            return
        self._refuse_own_thread()  # Before anything is deleted.
        with self._changing:
            # Data that are deleted next need no sync.
            self._discard = self._temporary is not None
            try:
                self.stop()
            finally:
                self._discard = False
                self._delete_temporary()
                while self._snapshots:
                    delete_folder(self._snapshots.pop())

    def call(self, function: Callable[[Node], T]) -> T:
        """Runs `function(node)` on the broker's loop; for tests of fencepost itself.

        The node is the inside of the broker, and changes without notice: `faults`, `clock` and the
        words of `Contents` do not.
        """
        self._require_running()
        self._refuse_inherited()
        assert self._loop is not None
        if threading.current_thread() is self._thread:
            return function(self.node)
        crashes = self._crashes
        results: list[T] = []
        done: Future[None] = Future()

        def run() -> None:
            try:
                results.append(function(self.node))
                done.set_result(None)
            except BaseException as problem:  # noqa: BLE001 - raised to the caller of `call`
                done.set_exception(problem)

        self._calls.add(done)
        try:
            self._loop.call_soon_threadsafe(run)
            done.result(START_TIMEOUT_SECONDS)
        except (Crash, CancelledError, RuntimeError) as problem:
            if self._crashes != crashes:
                raise BrokerCrashed(
                    "The broker has crashed meanwhile, as the test wanted."
                ) from None
            if done.done() and not done.cancelled():
                raise  # The function raised it.
            reason = f" by itself: {self._failure}" if self._failure else ""
            raise FencepostError(f"The broker has stopped{reason}.") from problem
        finally:
            self._calls.discard(done)
        return results[0]

    # -- the thread
    # ---------------------------------------------------------------------------------------

    def _run(self, data: str, ready: Future[str]) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._run_node(data, ready))
        except BaseException as problem:
            if not ready.done():
                ready.set_exception(problem)
            else:
                log.exception("the embedded broker failed")
                self._failure = str(problem)
        finally:
            for call in list(self._calls):
                call.cancel()

    async def _run_node(self, data: str, ready: Future[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_failed_callback)
        self._stopping = stopping = asyncio.Event()
        secured = self._secured
        config = BrokerConfig(
            *given_settings(
                settings=self._overrides + (secured.settings(self._port) if secured else []),
                listen=None if self._has_listeners else f"{bracketed(self._host)}:{self._port}",
                data=data,
                durability=self._durability,
            )
        )
        refuse_open_listeners(config, allow_remote=False)
        for warning in config.warnings:
            log.warning("%s", warning)
        refuse_taken_address(config)
        lock = self._lock = DirectoryLock(data)
        is_kept = self._temporary is None or self._durability != "os"
        disk = self._disk = CrashableDisk(SystemDisk(), syncs=is_kept)
        try:
            metrics_at = metrics_address(self._metrics, allow_remote=False)
            node = make_node(
                config,
                trace_file=self._trace,
                on_fatal=self._on_fatal,
                counts_requests=metrics_at is not None,
                disk=disk,
                clock=self._moved_clock,
            )
            self._node = node
            self.faults.attach(node)
            node.runtime.crash_points = self.faults.reach
            node.services.audit.on_denied = self._denials.append
            self._endpoint = endpoint = await serve_metrics(node, metrics_at)
            if metrics_at is not None and endpoint is not None:
                # A restart uses the same port, so that scrapers find it again.
                self._metrics = f"{bracketed(metrics_at.host)}:{endpoint.port}"
            try:
                ready.set_result(await node.start(secured.administrator if secured else None))
                await stopping.wait()
            finally:
                self.faults.detach()
                if self._has_crashed:
                    await node.abandon()
                else:
                    await node.stop(clean=self._failure is None and not self._discard)
                if endpoint is not None:
                    await endpoint.stop()
        finally:
            disk.close_all()
            self._lock = None
            if ready.done():
                lock.release()
            else:
                lock.release_unused()

    def _on_failed_callback(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._has_crashed:  # Otherwise it is the crash, or follows from it.
            stop_on_failed_callback(self._on_fatal)(loop, context)

    def _on_fatal(self, reason: str) -> None:
        if self._has_crashed:
            return  # Its disk is cut off, and it is stopping.
        log.critical("%s", reason)
        self._failure = reason
        assert self._stopping is not None
        self._stopping.set()

    def _delete_temporary(self) -> None:
        if self._secured is not None:
            self._secured.delete(keeps_files=self._is_inherited)
        if self._temporary is not None:
            if not self._is_inherited:
                delete_folder(self._temporary)
            self.data = self._temporary = None

    def replace_descriptors(self, nothing: int) -> None:
        """Points the copied descriptors to `nothing`; their objects keep using the numbers."""
        lock, node = self._lock, self._node
        found = [] if lock is None else [lock.descriptor]
        if node is not None:
            found += node.descriptors()
        if self._endpoint is not None:
            found += self._endpoint.descriptors()
        for descriptor in found:
            with contextlib.suppress(OSError):  # The loop's thread may have been closing it.
                os.dup2(nothing, descriptor, inheritable=False)


def copy_directory(source: str, target: str) -> None:
    """Makes `target` a copy of `source`; the broker of `source`, if one runs, is between requests.

    Its background threads may be replacing a file, whose old name has gone then: so it is copied
    again.
    """
    for attempt in range(_COPY_ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target)
        except (shutil.Error, FileNotFoundError):
            if attempt == _COPY_ATTEMPTS - 1:
                raise
        else:
            return


_COPY_ATTEMPTS: Final = 5

_running: Final[set[Broker]] = set()


def _replace_descriptors_in_child() -> None:
    if not _running:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for broker in list(_running):
        # The loop's thread stopped anywhere: one broker's state must not keep the others' ports.
        with contextlib.suppress(Exception):
            broker.replace_descriptors(nothing)
    os.close(nothing)


def _close_all() -> None:
    """Closes all brokers at interpreter exit, so that no temporary folder is left behind."""
    for broker in list(_running):
        with contextlib.suppress(FencepostError):
            broker.close()


os.register_at_fork(after_in_child=_replace_descriptors_in_child)
# The brokers must stop before the thread pools, which they need for it. Callbacks run in reverse
# order of registration, and importing the pools registers theirs. `atexit` functions run later.
import_module("concurrent.futures.thread")
getattr(threading, "_register_atexit", atexit.register)(_close_all)

"""A broker inside a Python program: thread, event loop, temporary directory, free port.

    with fencepost.Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

It runs the same node as `fencepost serve`. `call` runs a function on the broker's loop; tests use
it to inject faults without a lock. Any thread may start, stop or call the broker, except that the
loop's thread may only call it.

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
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from fencepost.base.failures import ConfigError, FencepostError
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
    checked_config,
    in_words_of_arguments,
    path_or_none,
)
from fencepost.testing.security import Secured, SecuredClients, Security

if TYPE_CHECKING:
    from fencepost.broker.metrics.endpoint import MetricsEndpoint

log = logging.getLogger(__name__)

T = TypeVar("T")

START_TIMEOUT_SECONDS: Final = 60
"""Enough for a large log after a crash; an empty directory takes milliseconds."""


class Broker(SecuredClients):
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
        self._overrides = parse_overrides(checked_config(config))
        self._secured = None
        if security is not None:
            self._secured = Secured(security, host=host, config=config or {})
            self._secured.refuse_kept_data(self.data)
        self._has_listeners = security is not None or "listeners" in (config or {})
        self._trace = path_or_none(trace)
        self._metrics = metrics
        self._endpoint: MetricsEndpoint | None = None
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

    @property
    def bootstrap_servers(self) -> str:
        """The value for a client's `bootstrap.servers`."""
        self._require_running()
        return self._address

    @property
    def metrics_url(self) -> str:
        """Where metrics and health checks are served: append `/metrics`, `/healthz`, `/readyz`."""
        self._require_running()
        if self._metrics is None:
            raise FencepostError(
                'This broker serves no metrics: use `Broker(metrics="127.0.0.1:0")`.'
            )
        return f"http://{self._metrics}"

    def _require_running(self) -> None:
        if not self._thread:
            raise FencepostError("The broker is not running: use `with Broker() as broker:`.")

    @property
    def node(self) -> Node:
        """The node, for tests; use it only inside `call`."""
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
            self.data = self._temporary = tempfile.mkdtemp(prefix="fencepost-")
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
        if threading.current_thread() is self._thread:
            raise FencepostError(
                "The broker cannot be stopped from its own loop: use another thread."
            )
        with self._changing:
            self._stop()

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        _running.discard(self)
        if thread is None:
            return
        self._wake(thread)
        thread.join()
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

    def restart(self) -> None:
        """Stops cleanly and starts again on the same data and port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops, and deletes the data if they are in a temporary directory."""
        if self._is_inherited:
            self.stop()
            self._delete_temporary()
            return
        with self._changing:
            # Data that are deleted next need no sync.
            self._discard = self._temporary is not None
            try:
                self.stop()
            finally:
                self._discard = False
                self._delete_temporary()

    def call(self, function: Callable[[Node], T]) -> T:
        """Runs `function(node)` on the broker's loop and returns its result."""
        self._require_running()
        if self._is_inherited:
            raise FencepostError(
                f"The broker runs in process {self._process_id}, the parent of this fork: use it "
                "as a client, or start another broker here."
            )
        assert self._loop is not None
        if threading.current_thread() is self._thread:
            return function(self.node)
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
        except (CancelledError, RuntimeError) as problem:
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
        self._loop.set_exception_handler(stop_on_failed_callback(self._on_fatal))
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
        try:
            metrics_at = metrics_address(self._metrics, allow_remote=False)
            node = make_node(
                config,
                trace_file=self._trace,
                on_fatal=self._on_fatal,
                counts_requests=metrics_at is not None,
            )
            self._node = node
            self._endpoint = endpoint = await serve_metrics(node, metrics_at)
            if metrics_at is not None and endpoint is not None:
                # A restart uses the same port, so that scrapers find it again.
                self._metrics = f"{bracketed(metrics_at.host)}:{endpoint.port}"
            try:
                ready.set_result(await node.start(secured.administrator if secured else None))
                await stopping.wait()
            finally:
                await node.stop(clean=self._failure is None and not self._discard)
                if endpoint is not None:
                    await endpoint.stop()
        finally:
            self._lock = None
            if ready.done():
                lock.release()
            else:
                lock.release_unused()

    def _on_fatal(self, reason: str) -> None:
        log.critical("%s", reason)
        self._failure = reason
        assert self._stopping is not None
        self._stopping.set()

    def _delete_temporary(self) -> None:
        if self._secured is not None:
            self._secured.delete(keeps_files=self._is_inherited)
        if self._temporary is not None:
            if not self._is_inherited:
                shutil.rmtree(self._temporary, ignore_errors=True)
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

"""The broker as a process: settings, the lock on the data directory, signals, the loop.

Only this module and `testing/embedded.py` build a `Node` on the system clock and disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError
from fencepost.base.mapping import Mapping
from fencepost.base.system import SystemClock, SystemDisk, SystemRandomness, now_us
from fencepost.broker.core import BrokerCore, cannot_listen
from fencepost.broker.log_format import name_broker
from fencepost.broker.security.file_modes import warn_of_open_files
from fencepost.broker.settings.config import BrokerConfig, given_settings
from fencepost.broker.settings.refusals import (
    metrics_address,
    refuse_open_listeners,
    refuse_optimised_python,
)
from fencepost.broker.storage.descriptors import open_file_limit, raise_open_file_limit, share_out
from fencepost.broker.storage.directory_lock import DirectoryLock
from fencepost.broker.trace import Trace
from fencepost.broker.transactions.ending import CRASH_POINTS, REMOTE_CRASH_POINTS

if TYPE_CHECKING:
    from fencepost.base.seams import Clock, Disk
    from fencepost.broker.metrics.endpoint import MetricsEndpoint
    from fencepost.broker.node import Node
    from fencepost.broker.security.first_administrator import Administrator
    from fencepost.broker.settings.listener import Address

log = logging.getLogger(__name__)

OLDEST_GENERATION: Final = 2

THOROUGH_SECONDS: Final = 3_600.0
"""How often the number of frozen objects is checked."""

FEWEST_FROZEN: Final = 200_000
"""Below this number, frozen objects are not collected: garbage among them is a few megabytes."""

CRASH_POINT_VARIABLE: Final = "FENCEPOST_CRASH_POINT"
"""For tests: `commit.marker-appended:2` kills the process when it reaches that point again."""


def run(
    *,
    listen: str | None = None,
    data: str | None = None,
    settings: Sequence[str] = (),
    settings_file: str | None = None,
    durability: str | None = None,
    allow_remote: bool = False,
    trace_file: str | None = None,
    metrics: str | None = None,
    announce: Callable[[str], None],
    administrator: Administrator | None = None,
) -> int:
    """Serves until SIGTERM or Ctrl-C; returns the exit code."""
    refuse_optimised_python()
    config = BrokerConfig(
        *given_settings(
            settings=settings,
            settings_file=settings_file,
            listen=listen,
            data=data,
            durability=durability,
        )
    )
    narrowed = None if allow_remote or listen is not None else config.keep_to_loopback()
    refuse_open_listeners(config, allow_remote=allow_remote)
    metrics_at = metrics_address(metrics, allow_remote=allow_remote)
    name_broker(config.node_id)
    for warning in (*config.warnings, *([narrowed] if narrowed else [])):
        log.warning("%s", warning)
    refuse_taken_address(config)
    raised = raise_open_file_limit()
    lock = DirectoryLock(config.data)
    warn_of_open_files(config, settings_file)
    leave = lock.release_unused

    def on_ready(address: str) -> None:
        nonlocal leave
        leave = lock.release
        announce(address)
        # After the line that a user waits for.
        _log_limits(config, *raised)

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_serve(config, trace_file, metrics_at, on_ready, administrator))
    finally:
        leave()


async def _serve(
    config: BrokerConfig,
    trace_file: str | None,
    metrics_at: Address | None,
    announce: Callable[[str], None],
    administrator: Administrator | None,
) -> int:
    stopped = asyncio.Event()
    problem: list[str] = []

    def on_fatal(reason: str) -> None:
        problem.append(reason)
        log.critical("%s", reason)
        # Nothing more may be written; the next start recovers from the log.
        os._exit(70)

    node = make_node(
        config, trace_file=trace_file, on_fatal=on_fatal, counts_requests=metrics_at is not None
    )
    if CRASH_POINT_VARIABLE in os.environ:
        node.runtime.crash_points = kill_at(os.environ[CRASH_POINT_VARIABLE])
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(stop_on_failed_callback(on_fatal))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave_at_once)
    gc.disable()  # Until everything is loaded: hardly any of it is garbage.
    endpoint = await serve_metrics(node, metrics_at)
    try:
        address = await node.start(administrator)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        freeze_garbage_collector()
        loop.call_later(THOROUGH_SECONDS, _collect_frozen, loop, gc.get_freeze_count())
        announce(address)
        await stopped.wait()
        log.info("stopping")
    finally:
        await node.stop()
        if endpoint is not None:
            await endpoint.stop()
    return 0


async def serve_metrics(broker: BrokerCore, at: Address | None) -> MetricsEndpoint | None:
    """Serves metrics and health checks, before a start that may take long; None without them."""
    if at is None:
        return None
    # Here, because prometheus-client takes as long to import as the rest of a start.
    from fencepost.broker.metrics.endpoint import MetricsEndpoint

    endpoint = MetricsEndpoint(broker)
    await endpoint.start(*at)
    return endpoint


def _leave_at_once(number: int, frame: object) -> None:
    """Ends the process on a signal during the start, which may take long after a crash.

    Nothing was served yet, and the next start begins again.
    """
    os.write(2, b"fencepost: stopped while starting; nothing is lost\n")
    os._exit(128 + number)


def refuse_taken_address(config: BrokerConfig) -> None:
    """Raises ConfigError for an address in use, before a directory is created or a log is read."""
    for listener in config.client_listeners:
        _try_address(listener.at.host, listener.at.port)


def _try_address(host: str, port: int) -> None:
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind(address)
    except OSError as problem:
        raise cannot_listen(host, port, problem) from problem


def stop_on_failed_callback(
    on_fatal: Callable[[str], None],
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Makes an exception handler for the loop: a failed timer or callback ends the process.

    Its work would never be finished: a sync, a marker, a reply. After a restart the log says what
    is left to do. Problems with a socket (no descriptors left, a failed read) concern one client
    and are only logged; the loop reports them without a handle.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        problem = context.get("exception")
        if isinstance(problem, AssertionError):
            on_fatal("an internal assertion failed")
        elif context.get("handle") is not None and isinstance(problem, Exception):
            on_fatal(f"a callback failed: {type(problem).__name__}: {problem}")

    return handle


def _log_limits(config: BrokerConfig, before: int, limit: int) -> None:
    if limit != before:
        log.info("raised the limit of open files from %d to %d", before, limit)
    connections = share_out(open_file_limit(), config.max_connections).connections
    if connections < config.max_connections:
        log.info(
            "accepting at most %d connections (max.connections is %d), as this process may open "
            "only %d files; raise `ulimit -n` for more",
            connections,
            config.max_connections,
            limit,
        )


def make_node(
    config: BrokerConfig,
    *,
    trace_file: str | None = None,
    on_fatal: Callable[[str], None],
    counts_requests: bool = False,
    clock: Clock | None = None,
    disk: Disk | None = None,
) -> Node:
    """Builds a node on the system randomness, and clock and disk unless there are others."""
    # Here, because a broker of a cluster imports this module and has no controller.
    from fencepost.broker.node import Node

    trace = None
    if trace_file is not None:
        try:
            trace = Trace(now_us, open(trace_file, "a", encoding="utf-8"))  # noqa: SIM115
        except OSError as problem:
            raise ConfigError(
                f"Cannot write the trace to {trace_file}: {problem.strerror}."
            ) from problem
    descriptors = share_out(open_file_limit(), config.max_connections)
    Mapping.limit = descriptors.mappings
    return Node(
        config,
        clock=clock or SystemClock(),
        disk=disk or SystemDisk(),
        randomness=SystemRandomness(),
        trace=trace,
        on_fatal=on_fatal,
        descriptors=descriptors,
        counts_requests=counts_requests,
    )


def kill_at(wanted: str) -> Callable[[str], None]:
    """Makes a hook for `Runtime.crash_points` that kills this process (-9) at one of them."""
    name, _, ordinal = wanted.partition(":")
    points = (*CRASH_POINTS, *REMOTE_CRASH_POINTS)
    if name not in points or not (ordinal or "1").isdecimal():
        raise ConfigError(
            f"{CRASH_POINT_VARIABLE}={wanted} is not a crash point. Use one of "
            f"{', '.join(points)}, optionally with a colon and the number of the call."
        )
    left = int(ordinal or "1")

    def reached(point: str) -> None:
        nonlocal left
        left -= point == name
        if left == 0 and point == name:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Makes a uvloop event loop if uvloop is installed, otherwise asyncio's."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def freeze_garbage_collector() -> None:
    """Keeps full collections short: objects that survive one are frozen, and not visited again.

    The loop stops while the collector runs, for about 0.25 ms per 1,000 objects: with 100,000
    transactional ids a full collection takes 59 ms, and 0.01 ms once they are frozen. So everything
    loaded at the start is frozen, and so are later survivors. With a young generation of 10,000
    objects and thresholds of 1, a full collection visits about 40,000 of them, in 10 ms.

    The collector no longer finds cyclic garbage among frozen objects. Topics, groups, transactions,
    connections and requests are in no cycles and are freed by reference counting, as
    tests/broker/races/test_freed.py shows. `_collect_frozen` limits the damage if a cycle was
    missed.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 1, 1)
    gc.callbacks.append(_freeze_survivors)
    gc.enable()


def _freeze_survivors(phase: str, info: MappingOf[str, int]) -> None:
    if phase == "stop" and info["generation"] == OLDEST_GENERATION:
        gc.freeze()


def _collect_frozen(loop: asyncio.AbstractEventLoop, count_before: int) -> None:
    """Collects everything when the frozen objects have doubled, so that a leak stays bounded.

    This stops the loop for longer than anything else. A broker whose size is stable never does it.
    """
    count = gc.get_freeze_count()
    if count > max(FEWEST_FROZEN, 2 * count_before):
        gc.unfreeze()
        gc.collect()  # `_freeze_survivors` freezes them again.
        log.info("collected garbage among %d objects: %d are left", count, gc.get_freeze_count())
        count_before = gc.get_freeze_count()
    loop.call_later(THOROUGH_SECONDS, _collect_frozen, loop, count_before)


def parse_overrides(overrides: MappingOf[str, object]) -> list[str]:
    """Formats settings as `key=value` strings in Kafka's notation; leaves out those set to None."""
    return [f"{key}={_text_of(value)}" for key, value in overrides.items() if value is not None]


def _text_of(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)

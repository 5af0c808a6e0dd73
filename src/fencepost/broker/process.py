"""A broker as a process: settings, the lock on the data directory, signals, the loop.

This and `testing/embedded.py` are the two places that build a `Node` on the real world.
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
from typing import Any, Final

from fencepost.base.failures import ConfigError
from fencepost.base.mapping import Mapping
from fencepost.base.system import SystemClock, SystemDisk, SystemRandomness
from fencepost.broker.node import Node, cannot_listen
from fencepost.broker.settings.config import BrokerConfig, load_config
from fencepost.broker.settings.listener import is_loopback
from fencepost.broker.storage.descriptors import open_file_limit, raise_open_file_limit, share_out
from fencepost.broker.storage.directory_lock import DirectoryLock
from fencepost.broker.trace import Trace
from fencepost.broker.transactions.ending import CRASH_POINTS

log = logging.getLogger(__name__)

OLDEST_GENERATION: Final = 2

CRASH_POINT_VARIABLE: Final = "FENCEPOST_CRASH_POINT"
"""For tests: `commit.marker-appended:2` kills the process at the second call of that point."""


def run(
    *,
    listen: str | None = None,
    data: str | None = None,
    settings: Sequence[str] = (),
    settings_file: str | None = None,
    durability: str | None = None,
    allow_remote: bool = False,
    trace_file: str | None = None,
    announce: Callable[[str], None],
) -> int:
    """Serves until SIGTERM or Ctrl-C; the exit code."""
    refuse_optimised_python()
    config = load_config(
        settings=settings,
        settings_file=settings_file,
        listen=listen,
        data=data,
        durability=durability,
    )
    narrowed = None if allow_remote or listen is not None else config.keep_to_loopback()
    refuse_remote(config.listen_host, allow_remote)
    for warning in (*config.warnings, *([narrowed] if narrowed else [])):
        log.warning("%s", warning)
    refuse_taken_address(config)
    before, limit = raise_open_file_limit()
    if limit != before:
        log.info("the limit of open files was raised from %d to %d", before, limit)
    lock = DirectoryLock(config.data)
    leave = lock.release_unused

    def on_ready(address: str) -> None:
        nonlocal leave
        leave = lock.release
        announce(address)

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_serve(config, trace_file, on_ready))
    finally:
        leave()


async def _serve(
    config: BrokerConfig, trace_file: str | None, announce: Callable[[str], None]
) -> int:
    stopped = asyncio.Event()
    problem: list[str] = []

    def on_fatal(reason: str) -> None:
        problem.append(reason)
        log.critical("%s", reason)
        # Not a clean stop: nothing more may be written, and the next start recovers from the log.
        os._exit(70)

    node = make_node(config, trace_file=trace_file, on_fatal=on_fatal)
    if CRASH_POINT_VARIABLE in os.environ:
        node.runtime.crash_points = kill_at(os.environ[CRASH_POINT_VARIABLE])
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(stop_on_failed_callback(on_fatal))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave_at_once)
    try:
        address = await node.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        freeze_garbage_collector()
        announce(address)
        await stopped.wait()
        log.info("stopping")
    finally:
        await node.stop()
    return 0


def _leave_at_once(number: int, frame: object) -> None:
    """A signal during the start, which may take long after a crash.

    Nothing was served yet: the next start does it again.
    """
    os.write(2, b"fencepost: stopped while starting; nothing is lost\n")
    os._exit(128 + number)


def refuse_taken_address(config: BrokerConfig) -> None:
    """ConfigError where nobody could listen, before a directory is created or a log is loaded."""
    host, port = config.listen_host, config.listen_port
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
    """A handler for what nobody caught: an exception out of a timer or another callback ends the process.

    What the callback left undone would never be done: a sync, a marker, the answer to a client.
    After a restart the log says what is to be done. What the loop reports of its sockets (no
    descriptors left, a failed read) has no handle, concerns one client and is only logged.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        problem = context.get("exception")
        if isinstance(problem, AssertionError):
            on_fatal("an internal assertion failed")
        elif context.get("handle") is not None and isinstance(problem, Exception):
            on_fatal(f"a callback failed: {type(problem).__name__}: {problem}")

    return handle


def make_node(
    config: BrokerConfig,
    *,
    trace_file: str | None = None,
    on_fatal: Callable[[str], None],
) -> Node:
    """A node on the real clock, disk and randomness."""
    clock = SystemClock()
    trace = None
    if trace_file is not None:
        try:
            trace = Trace(clock, open(trace_file, "a", encoding="utf-8"))  # noqa: SIM115
        except OSError as problem:
            raise ConfigError(
                f"The trace cannot be written to {trace_file}: {problem.strerror}."
            ) from problem
    descriptors = share_out(open_file_limit(), config.max_connections)
    if descriptors.connections < config.max_connections:
        log.info(
            "%d connections at most (max.connections is %d): this process may open %d files; "
            "raise `ulimit -n` for more",
            descriptors.connections,
            config.max_connections,
            open_file_limit(),
        )
    Mapping.limit = descriptors.mappings
    return Node(
        config,
        clock=clock,
        disk=SystemDisk(),
        randomness=SystemRandomness(),
        trace=trace,
        on_fatal=on_fatal,
        descriptors=descriptors,
    )


def kill_at(wanted: str) -> Callable[[str], None]:
    """A hook for `Runtime.crash_points`: this process dies by kill -9 at the n-th call of one of them."""
    name, _, ordinal = wanted.partition(":")
    if name not in CRASH_POINTS or not (ordinal or "1").isdecimal():
        raise ConfigError(
            f"{CRASH_POINT_VARIABLE}={wanted}: there is no such point. It is one of "
            f"{', '.join(CRASH_POINTS)}; behind a colon, at which call of it."
        )
    left = int(ordinal or "1")

    def reached(point: str) -> None:
        nonlocal left
        left -= point == name
        if left == 0 and point == name:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed; any asyncio loop will do."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def refuse_optimised_python() -> None:
    if not __debug__:
        raise ConfigError(
            "The broker does not run under python -O: its assertions are part of what keeps "
            "data safe."
        )


def refuse_remote(host: str, allow_remote: bool) -> None:
    """Nothing listens beyond loopback unless told to."""
    if allow_remote or is_loopback(host):
        return
    raise ConfigError(
        f"{host or 'Every address of this machine'} can be reached from other machines, "
        "and this broker has no authentication. "
        "Listen on 127.0.0.1 or [::1], or add --allow-remote if the network is yours."
    )


def pause_garbage_collector() -> None:
    """Until the broker is loaded: nothing of that is garbage, and to look for it takes longer the more there is."""
    gc.collect()
    gc.disable()


def freeze_garbage_collector() -> None:
    """Whatever has lived through a full collection is not walked again: it lives as long as the process, or is freed without one.

    The loop stands still while the collector walks, for about 0.25 ms per thousand objects. What
    was loaded is frozen at once: 100,000 transactional ids make a full collection take 59 ms,
    frozen ones 0.01. What comes later is looked at up to three times, with at most 40,000
    contemporaries, and then frozen, too: about 10 ms at a time. The thresholds of before (10,000,
    50, 200) walked half a million objects at once: a reply about 20,000 partitions and more then
    took 91 to 119 ms of the loop's time in one piece, now 33 (2026-11-16, 2 busy cores). Requests
    that leave nothing behind cost nothing. Partitions, connections and transactions that end are
    freed by their reference counts, as they are in no cycles: tests/broker/test_freed.py holds them
    to it.
    """
    gc.freeze()
    gc.set_threshold(10_000, 1, 1)
    gc.callbacks.append(_freeze_survivors)
    gc.enable()


def _freeze_survivors(phase: str, info: MappingOf[str, int]) -> None:
    if phase == "stop" and info["generation"] == OLDEST_GENERATION:
        gc.freeze()


def parse_overrides(overrides: MappingOf[str, object]) -> list[str]:
    """A mapping of configs as `key=value` strings, as Kafka writes them; None leaves the default."""
    return [f"{key}={_text_of(value)}" for key, value in overrides.items() if value is not None]


def _text_of(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)

"""Runs a tap until it is stopped by Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import Any, Final

from fencepost.base.failures import FencepostError
from fencepost.client.options import Endpoint
from fencepost.forensics.tap.dialing import reach
from fencepost.forensics.tap.proxy import Proxy, TapOptions
from fencepost.forensics.tap.sinks import Sink

FIRST_CONNECT_SECONDS: Final = 2.5
"""How long the brokers may take to accept the first connection: a dead one is reported within three
seconds."""

Announce = Callable[[Endpoint, Endpoint, int | None], None]


def run_tap(options: TapOptions, sinks: Sequence[Sink], announce: Announce) -> dict[str, Any]:
    """Serves until it is stopped; returns the counts of the summary.

    FencepostError if the port is taken or no broker can be reached.
    """
    _raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            return runner.run(_run_until_stopped(options, sinks, announce))
    finally:
        for sink in sinks:
            sink.close()


async def _run_until_stopped(
    options: TapOptions, sinks: Sequence[Sink], announce: Announce
) -> dict[str, Any]:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await _require_reachable(options)
    proxy = Proxy(options, sinks, announce)
    try:
        await stopped.wait()
    finally:
        proxy.close()
    return proxy.tally.fields()


async def _require_reachable(options: TapOptions) -> None:
    """Refuses to start before a cluster that cannot be reached."""
    try:
        connection, _ = await reach(
            options.to, options.tls, FIRST_CONNECT_SECONDS / len(options.to)
        )
    except FencepostError as problem:
        raise FencepostError(
            f"The cluster cannot be used: {problem}. Check --to, and --config if it uses TLS."
        ) from problem
    connection.close()


def _raise_file_limit() -> None:
    """Two files per connection: as many as the system allows."""
    try:
        import resource
    except ImportError:
        return  # Windows has no such limit.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()

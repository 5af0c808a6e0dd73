"""`fencepost serve --test`: a broker for tests in any language.

It is the embedded broker (`embedded.py`) with its control over HTTP (`http_control.py`). Before
"fencepost is ready" it prints where the control listens and which file has its token:

    fencepost test control is at http://127.0.0.1:41234, with the token in /tmp/.../token
    fencepost is ready at 127.0.0.1:9092

Each start has a new token and a free port. As other test brokers, it begins with an empty
temporary directory unless there is a `--data`, and its groups do not wait for their first members.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.base.failures import ConfigError
from fencepost.broker.log_format import name_broker
from fencepost.broker.process import new_event_loop, refuse_taken_address
from fencepost.broker.settings.config import BrokerConfig, given_settings
from fencepost.broker.settings.listener import is_loopback, parse_address
from fencepost.broker.settings.refusals import refuse_optimised_python
from fencepost.testing.arguments import QUICK_CONFIG
from fencepost.testing.embedded import Broker
from fencepost.testing.folders import delete_folder, make_folder
from fencepost.testing.http_control import HttpControl

_TOKEN_BYTES: Final = 32


def run(
    *,
    listen: str | None,
    data: str | None,
    settings: Sequence[str],
    durability: str | None,
    trace_file: str | None,
    metrics: str | None,
    announce: Callable[[str], None],
    announce_control: Callable[[str, str], None],
) -> int:
    """Serves until SIGTERM or Ctrl-C; returns the exit code."""
    refuse_optimised_python()
    given, _ = given_settings(settings=settings, listen=listen)
    config = BrokerConfig(dict(given), frozenset())
    _refuse_remote(config, metrics)
    refuse_taken_address(config)
    name_broker(config.node_id)
    at = config.client_listeners[0].at
    if listen is not None:
        given.pop("listeners")
    broker = Broker(
        data=data,
        host=at.host,
        port=at.port,
        durability=durability or "os",
        config={**QUICK_CONFIG, **given},
        trace=trace_file,
        metrics=metrics,
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(broker, announce, announce_control))


async def _serve(
    broker: Broker,
    announce: Callable[[str], None],
    announce_control: Callable[[str, str], None],
) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    folder = make_folder("fencepost-test-")
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    control = HttpControl(broker, token)
    try:
        token_file = write_token(folder, token)
        await _start(broker)
        announce_control(await control.start(), token_file)
        announce(broker.bootstrap_servers)
        await stopped.wait()
    finally:
        await control.stop()
        await asyncio.to_thread(broker.close)
        delete_folder(folder)
    return 0


async def _start(broker: Broker) -> None:
    try:
        await asyncio.to_thread(broker.start)
    except ConfigError as problem:
        # In the words of the command line, which it had before it was an argument of `Broker`.
        original = problem.__cause__
        raise original if isinstance(original, ConfigError) else problem from None


def write_token(folder: str, token: str) -> str:
    """Writes the token into a file that only this user can read; returns its path."""
    path = os.path.join(folder, "token")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token)
    return path


def _refuse_remote(config: BrokerConfig, metrics: str | None) -> None:
    """Whoever can tell this broker to crash is on this machine, and so are all its clients."""
    found = [(str(each.at), each.at.host) for each in config.client_listeners]
    if metrics is not None:
        host = parse_address("--metrics", metrics).host
        found.append((f"--metrics: {host}", host))
    for what, host in found:
        if not is_loopback(host):
            raise ConfigError(
                f"{what} can be reached from other machines, and --test is for this machine alone: "
                "listen on 127.0.0.1 or [::1], or leave --test out."
            )

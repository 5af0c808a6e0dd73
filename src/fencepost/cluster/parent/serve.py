"""`fencepost serve --brokers N`: the parent process, from its arguments to its exit code.

The brokers are started first. They need a third of a second to import what they are made of; the
parent uses it to import its own parts and to load the directory. So this module imports only what
reads the settings; everything else is imported after the brokers have been started.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fencepost.base.failures import ConfigError
from fencepost.broker.log_format import TEXT
from fencepost.broker.security.file_modes import warn_of_open_files
from fencepost.broker.settings.config import BrokerConfig, given_settings
from fencepost.broker.settings.refusals import (
    metrics_address,
    refuse_open_listeners,
    refuse_optimised_python,
)
from fencepost.broker.storage.directory_lock import DirectoryLock
from fencepost.cluster.parent.addresses import MAX_BROKERS, metrics_ports, settings_of_brokers
from fencepost.cluster.parent.broker_child import BrokerChild

if TYPE_CHECKING:
    from fencepost.broker.security.first_administrator import Administrator
    from fencepost.cluster.parent.parent import BrokerState

log = logging.getLogger(__name__)


def run(
    *,
    brokers: int,
    listen: str | None = None,
    data: str | None = None,
    settings: Sequence[str] = (),
    settings_file: str | None = None,
    durability: str | None = None,
    allow_remote: bool = False,
    trace_file: str | None = None,
    metrics: str | None = None,
    log_format: str = TEXT,
    lifeline: int | None = None,
    last_ports: Sequence[int] = (),
    announce: Callable[[str], None],
    administrator: Administrator | None = None,
) -> int:
    """Runs a cluster until SIGTERM or Ctrl-C; returns the exit code.

    `lifeline` is a file whose end stops the cluster: it ends when the program that holds the other
    end does. `last_ports` are those that the first listeners of the brokers had in an earlier run:
    with port 0 they get them again, if they are free.
    """
    if not 1 <= brokers <= MAX_BROKERS:
        raise ConfigError(f"--brokers is {brokers}; it must be between 1 and {MAX_BROKERS}")
    broker_ids = list(range(1, brokers + 1))
    given, unknown_ok = given_settings(
        settings=settings,
        settings_file=settings_file,
        listen=listen,
        data=data,
        durability=durability,
    )
    each = settings_of_brokers(given, broker_ids, unknown_ok)
    configs = [BrokerConfig(own, unknown_ok, broker_count=brokers) for own in each]
    metrics_at = metrics_address(metrics, allow_remote=allow_remote)
    ports = metrics_ports(metrics_at, brokers)
    for config in configs:
        _check(config, allow_remote=allow_remote, may_narrow=listen is None)
    lock = DirectoryLock(configs[0].data)
    warn_of_open_files(configs[0], settings_file)
    leave = lock.release_unused

    def on_ready(addresses: str) -> None:
        nonlocal leave
        leave = lock.release
        announce(addresses)

    def spawn(broker_id: int) -> BrokerChild:
        return BrokerChild(broker_id, lock.descriptor)

    started = [spawn(broker_id) for broker_id in broker_ids]
    try:
        states = _states(configs, each, unknown_ok, trace_file, log_format)
        if metrics_at is not None:
            for state, port in zip(states, ports[1:], strict=True):
                state.settings["metrics"] = [metrics_at.host, port]
        for state, port in zip(states, last_ports, strict=False):
            state.ports = [port]
        import asyncio

        from fencepost.cluster.parent.process import serve

        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(
                serve(
                    states,
                    started,
                    spawn,
                    metrics_at=metrics_at,
                    lifeline=lifeline,
                    announce=on_ready,
                    administrator=administrator,
                )
            )
    finally:
        for child in started:
            child.kill()  # Those of a start that failed early; others are gone.
            child.wait(1.0)
        leave()


def _check(config: BrokerConfig, *, allow_remote: bool, may_narrow: bool) -> None:
    refuse_optimised_python()
    narrowed = config.keep_to_loopback() if may_narrow and not allow_remote else None
    refuse_open_listeners(config, allow_remote=allow_remote)
    if config.node_id == 1:
        for warning in (*config.warnings, *([narrowed] if narrowed else [])):
            log.warning("%s", warning)


def _states(
    configs: Sequence[BrokerConfig],
    settings: Sequence[dict[str, str]],
    unknown_ok: frozenset[str],
    trace_file: str | None,
    log_format: str,
) -> list[BrokerState]:
    from fencepost.cluster.parent.parent import BrokerState

    level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
    states = []
    for config, own in zip(configs, settings, strict=True):
        # Narrowed to loopback, perhaps.
        own["listeners"] = ",".join(str(listener.at) for listener in config.client_listeners)
        start: dict[str, Any] = {
            "settings": own,
            "unknown_ok": sorted(unknown_ok),
            "ports": [listener.at.port for listener in config.client_listeners],
            "broker_ids": [each.node_id for each in configs],
            "trace": None if trace_file is None else os.path.abspath(trace_file),
            "log_level": level,
            "log_format": log_format,
            "metrics": None,
        }
        states.append(BrokerState(config.node_id, start))
    return states

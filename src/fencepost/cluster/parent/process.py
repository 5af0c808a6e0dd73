"""Builds the parent of a cluster on the system's clock and disk, and runs it to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fencepost.base.system import SystemClock, SystemDisk, SystemRandomness
from fencepost.broker.partitions.partition_host import PartitionHost
from fencepost.broker.process import make_node, stop_on_failed_callback
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.storage.layout import Layout
from fencepost.broker.storage.parent_layout import ParentLayout
from fencepost.cluster.parent.control import ControlServer
from fencepost.cluster.parent.controller_node import CONTROLLER_ID, ControllerNode
from fencepost.cluster.parent.parent import BrokerState, Parent

if TYPE_CHECKING:
    from fencepost.broker.security.first_administrator import Administrator
    from fencepost.broker.settings.listener import Address
    from fencepost.cluster.parent.broker_child import BrokerChild
    from fencepost.cluster.parent.metrics import ParentEndpoint

log = logging.getLogger(__name__)


async def serve(
    brokers: Sequence[BrokerState],
    started: Sequence[BrokerChild],
    spawn: Callable[[int], BrokerChild],
    *,
    metrics_at: Address | None,
    lifeline: int | None,
    announce: Callable[[str], None],
    administrator: Administrator | None = None,
) -> int:
    """Runs the cluster until it is told to stop; returns the exit code."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(stop_on_failed_callback(_on_fatal))
    settings = {**brokers[0].settings["settings"], "node.id": str(CONTROLLER_ID)}
    own = BrokerConfig(
        settings, frozenset(brokers[0].settings["unknown_ok"]), broker_count=len(brokers)
    )
    randomness = SystemRandomness()
    await _reconcile(brokers)
    host = PartitionHost(
        own,
        lambda disk: ParentLayout(disk, own.data),
        clock=SystemClock(),
        disk=SystemDisk(),
        on_fatal=_on_fatal,
    )
    node = ControllerNode(
        own,
        host,
        [each.broker_id for each in brokers],
        randomness=randomness,
    )
    parent = Parent(
        loop,
        node,
        brokers,
        randomness=randomness,
        spawn=spawn,
        session_timeout_ms=own.broker_session_timeout_ms,
        announce=announce,
    )
    control = ControlServer(parent, node)
    endpoint = await _serve_metrics(parent, metrics_at)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, parent.stop)
    if lifeline is not None:
        loop.add_reader(lifeline, _lifeline_moved, loop, lifeline, parent)
    try:
        node.attach(loop)
        node.load(administrator)
        # Brokers remove no folders: only the parent knows when the last one has closed a log.
        host.removal.start(loop, host.layout.deleted_folders())
        await control.start(own.data)
        await parent.run(started)
    finally:
        parent.kill_all()
        await control.stop(own.data)
        await node.stop(was_begun=parent.is_begun)
        if endpoint is not None:
            await endpoint.stop()
    return 0


async def _serve_metrics(parent: Parent, at: Address | None) -> ParentEndpoint | None:
    if at is None:
        return None
    from fencepost.cluster.parent.metrics import ParentEndpoint

    endpoint = ParentEndpoint(parent)
    await endpoint.start(*at)
    return endpoint


async def _reconcile(brokers: Sequence[BrokerState]) -> None:
    """Makes the logs agree after a power loss: a single broker opens and compares all of them.

    It leads all partitions then. They are placed again when the brokers start.
    """
    first = brokers[0].settings
    config = BrokerConfig(first["settings"], frozenset(first["unknown_ok"]))
    layout = Layout(SystemDisk(), config.data)
    layout.load()
    if layout.may_disagree:
        log.warning("power may have been lost: one process compares all logs before brokers start")
        await make_node(config, on_fatal=_on_fatal).recover()


def _lifeline_moved(loop: asyncio.AbstractEventLoop, lifeline: int, parent: Parent) -> None:
    if not os.read(lifeline, 1):
        loop.remove_reader(lifeline)
        parent.stop()


def _on_fatal(reason: str) -> None:
    log.critical("%s", reason)
    # The brokers end with their links to this process; the next start recovers from the logs.
    os._exit(70)

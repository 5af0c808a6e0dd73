"""`fencepost cluster`: shows and commands the brokers of a cluster.

Leaders are moved over Kafka's own requests, so `move` works with Apache Kafka too, and so does a
`status` with what the wire tells. The rest (processes, restarts) goes over the control socket in
the data directory of `fencepost serve --brokers N`. --data names the directory; otherwise a broker
is asked for it (DescribeLogDirs), and the cluster that answers there must have the same id.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fencepost.base.failures import FencepostError
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    NO_NODE,
    TRANSACTION_STATE_TOPIC,
)
from fencepost.base.options import INT32_MAX
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.layout import App
from fencepost.cli.naming import require_partition
from fencepost.cli.output import output
from fencepost.cli.partitions import parse_partition, refuse_topic
from fencepost.cli.units import for_people

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster

app = App(
    help="Show the brokers of a cluster, move leaders, and restart brokers in turn.",
    no_args_is_help=True,
)

Data = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DIR", help="The data directory; by default a broker is asked for it."
    ),
]
BrokerId = Annotated[int, typer.Argument(metavar="ID", help="The id of a broker.", min=0)]

COLUMNS: Final = ("id", "pid", "address", "state", "leads", "coordinates", "restarts")
_ROLL_SECONDS: Final = 180.0
"""Longer than a broker may take to close many partitions and to load them again."""


@app.command("status", short_help="Show brokers: process, address, state, leaders.")
@connected
def status_command(
    connection: Connection,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show the brokers of a cluster: process, address, state, how many partitions each leads.

    Of Apache Kafka, of a single fencepost broker and of a cluster on another machine it shows what
    the wire tells: the brokers that are alive, and what they lead.

    Example: fencepost cluster status --data ./fencepost-data
    """
    found = _status(connection, data)
    shown = output(as_json)
    if as_json:
        shown.details(found)
        return
    can_go = ["restarts", "coordinates", "pid", "leads"]
    shown.table(found["brokers"], COLUMNS, "The cluster has no live broker.", can_go)
    shown.details(
        {
            "cluster": found["cluster"],
            "data": found["data"],
            "controller": _process(found["controller"]["pid"]),
            "partitions without a leader": found["leaderless"],
            "brokers that are behind": found["unfinished"],
        }
    )


def _process(pid: int | None) -> str | None:
    return None if pid is None else f"process {pid}"


@app.command("move", short_help="Make a broker the leader of a partition.")
@connected
def move_command(
    connection: Connection,
    partition: Annotated[
        str,
        typer.Argument(metavar="TOPIC-P", help="Such as refunds-0."),
    ],
    to: Annotated[int, typer.Option(metavar="ID", help="The new leader.", min=0, max=INT32_MAX)],
    data: Data = None,
    timeout: Annotated[
        int, typer.Option(metavar="SECONDS", help="How long to wait for it.", min=1, max=86_400)
    ] = 60,
) -> None:
    """Make a broker the leader of a partition, and its preferred leader.

    It returns when the broker answers as the leader. Apache Kafka may have to copy the partition
    first; if that takes longer than --timeout, it goes on after the command has given up.

    Example: fencepost cluster move refunds-0 --to 2
    """
    name = parse_partition(partition)
    with connection.open(None if data is None else _addresses(data)) as client:
        refuse_topic(client, partition)
        require_partition(client, name)
        client.move_leader(name, to, timeout_ms=timeout * 1000)
    typer.echo(f"broker {to} leads {name}")


@app.command("roll", short_help="Restart brokers one after the other.")
@connected
def roll_command(
    connection: Connection,
    broker_ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="ID", help="The brokers; all by default.", show_default=False),
    ] = None,
    data: Data = None,
) -> None:
    """Restart brokers one after the other, without a partition that has no leader.

    Others lead a broker's partitions before it stops, and it gets its share again when it is back.

    Example: fencepost cluster roll 1 2
    """
    found = _controlled(connection, data)
    states = {broker["id"]: broker["state"] for broker in found["brokers"]}
    rolled = broker_ids or list(states)
    for broker_id in rolled:
        _require_serving(broker_id, states)
    for number, broker_id in enumerate(rolled, start=1):
        began = time.monotonic()
        _send(found["data"], {"do": "roll", "broker": broker_id}, timeout_seconds=_ROLL_SECONDS)
        took = for_people(round((time.monotonic() - began) * 1000))
        typer.echo(f"broker {broker_id} rolled in {took} ({number} of {len(rolled)})")


def _require_serving(broker_id: int, states: dict[int, str]) -> None:
    state = states.get(broker_id)
    if state is None:
        known = ", ".join(map(str, states))
        raise FencepostError(f"There is no broker {broker_id}; the brokers are {known}.")
    if state != "serving":
        raise FencepostError(
            f"Broker {broker_id} is {state}. Brokers are rolled only while all that are named "
            "serve; none was."
        )


def _add(name: str, short_help: str, text: str, done: str) -> None:
    """Adds a command that does one thing with one broker."""

    @app.command(name, short_help=short_help, help=f"{text}\n\nExample: fencepost cluster {name} 2")
    @connected
    def command(connection: Connection, broker_id: BrokerId, data: Data = None) -> None:
        folder = data or _controlled(connection, None)["data"]
        _send(folder, {"do": name, "broker": broker_id})
        typer.echo(f"broker {broker_id} {done}")


_add(
    "kill",
    "Kill a broker; it stays dead until it is restarted.",
    "Kill a broker (-9); it stays dead until `fencepost cluster restart`.",
    "is dead, and others lead its partitions",
)
_add(
    "restart",
    "Start a broker that is dead.",
    "Start a broker that is dead; returns when it serves.",
    "serves",
)
_add(
    "pause",
    "Stop a broker's process for a while (SIGSTOP).",
    "Stop a broker's process (SIGSTOP), as a long pause of a machine does.\n\nAfter "
    "broker.session.timeout.ms the broker counts as dead: it is killed and started again.",
    "is paused",
)
_add("resume", "Let a paused broker go on.", "Let a paused broker go on.", "goes on")


# -- the control socket, or the wire
# ------------------------------------------------------------------------------------------


def _send(folder: str, command: dict[str, Any], **more: Any) -> Any:
    from fencepost.cluster.parent.control import send_command

    return send_command(folder, command, **more)


def _status(connection: Connection, data: str | None) -> dict[str, Any]:
    if data is not None:
        found: dict[str, Any] = _send(data, {"do": "status"})
        return found
    with connection.open() as client:
        return _status_over_control(client) or _status_over_wire(client)


def _controlled(connection: Connection, data: str | None) -> dict[str, Any]:
    """The status of a cluster that can be commanded; FencepostError for any other."""
    if data is not None:
        return _status(connection, data)
    with connection.open() as client:
        found = _status_over_control(client)
    if found is None:
        raise FencepostError(
            f"The brokers at {connection.servers} cannot be commanded: they were not started on "
            "this machine, by this user, with `fencepost serve --brokers N`. If they were, name "
            "their directory with --data."
        )
    return found


def _addresses(data: str) -> str:
    brokers = _send(data, {"do": "status"})["brokers"]
    serving = [broker["address"] for broker in brokers if broker["state"] == "serving"]
    if not serving:
        raise FencepostError(f"No broker of the cluster on {data} serves clients now.")
    return ",".join(serving)


def _status_over_control(client: Cluster) -> dict[str, Any] | None:
    """The status from the control socket; None if the cluster has none that can be used here."""
    from fencepost.client.failures import Refused
    from fencepost.cluster.parent.control import SOCKET

    cluster_id = client.describe_cluster().cluster_id
    try:
        folders = client.log_dirs()
    except Refused:  # Not authorized: then the socket cannot be used either.
        return None
    for folder in folders:
        if not os.path.exists(os.path.join(folder, SOCKET)):
            continue
        try:
            found: dict[str, Any] = _send(folder, {"do": "status"})
        except FencepostError:
            continue
        if found["cluster"] == cluster_id:
            # Otherwise another machine has a directory of the same name.
            return found
    return None


def _status_over_wire(client: Cluster) -> dict[str, Any]:
    """The status as far as Metadata tells it."""
    view = client.metadata()
    leads: Counter[int] = Counter()
    coordinates: Counter[int] = Counter()
    for topic in view.topics.values():
        for partition in topic.partitions:
            leads[partition.leader] += 1
            if topic.name in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
                coordinates[partition.leader] += 1
    brokers = [
        {
            "id": broker_id,
            "pid": None,
            "address": str(endpoint),
            "state": "serving",
            "leads": leads[broker_id],
            "coordinates": coordinates[broker_id],
            "restarts": None,
        }
        for broker_id, endpoint in sorted(view.brokers.items())
    ]
    return {
        "cluster": view.cluster_id,
        "data": None,
        "controller": {"pid": None},
        "brokers": brokers,
        "leaderless": leads[NO_NODE],
        "unfinished": None,
    }

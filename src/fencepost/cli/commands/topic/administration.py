"""`fencepost topic list`, `create`, `describe`, `alter` and `delete`."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition, topic_id_text
from fencepost.base.options import INT16_MAX, INT32_MAX
from fencepost.cli.confirmation import Yes, confirm, delete_each
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.naming import Set, Unset, parse_settings, require_topic
from fencepost.cli.output import output
from fencepost.cli.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencepost.client.admin import NewTopic, TopicView
    from fencepost.client.blocking import Cluster
    from fencepost.client.configs import Setting

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of a topic.")]


@connected
def list_command(
    connection: Connection,
    internal: Annotated[
        bool, typer.Option("--internal", help="Internal topics, too (__consumer_offsets ...).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List topics: partitions, replicas, and partitions that have trouble.

    Example: fencepost topic list --internal
    """
    with connection.open() as cluster:
        topics = cluster.metadata().topics
    rows = [
        _summary(topic) for _, topic in sorted(topics.items()) if internal or not topic.is_internal
    ]
    columns = ["topic", "partitions", "replicas", "leaderless", "under_replicated"]
    output(as_json).table(rows, columns, "There are no topics.", ["replicas", "under_replicated"])


def _summary(topic: TopicView) -> dict[str, Any]:
    partitions = topic.partitions
    return {
        "topic": topic.name,
        "partitions": len(partitions),
        "replicas": max((len(p.replicas) for p in partitions), default=0),
        "leaderless": sum(p.leader < 0 for p in partitions),
        "under_replicated": sum(len(p.isr) < len(p.replicas) for p in partitions),
        "is_internal": topic.is_internal,
    }


@connected
def create_command(
    connection: Connection,
    topic: Topic,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions",
            "-p",
            metavar="N",
            help="How many partitions; -1: the cluster's default.",
            min=-1,
            max=INT32_MAX,
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="How many replicas; -1: the cluster's default.",
            min=-1,
            max=INT16_MAX,
        ),
    ] = -1,
    settings: Set = [],  # noqa: B006 - typer copies it
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a topic; returns when every partition has a leader.

    Example: fencepost topic create refunds --partitions 6 --set cleanup.policy=compact
    """
    from fencepost.client.admin import NewTopic

    wanted = NewTopic(topic, partitions, replication_factor, parse_settings(settings))
    with connection.open() as cluster:
        existed = if_not_exists and cluster.find_topic(topic) is not None
        if not existed:
            _create(cluster, wanted, exist_ok=if_not_exists)
        found = cluster.metadata([topic]).topics[topic]
    row = {"topic": topic, "created": not existed, "topic_id": topic_id_text(found.topic_id)}
    row |= {key: _summary(found)[key] for key in ("partitions", "replicas")}
    output(as_json).details(row)


def _create(cluster: Cluster, wanted: NewTopic, *, exist_ok: bool) -> None:
    from fencepost.client.failures import Refused

    try:
        cluster.create_topics([wanted], exist_ok=exist_ok)
    except Refused as problem:
        if problem.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        raise FencepostError(
            f"Topic {wanted.name!r} exists already. Nothing was changed; see `fencepost topic "
            f"describe {shlex.quote(wanted.name)}`. With --if-not-exists this is no error."
        ) from problem


@connected
def describe_command(connection: Connection, topic: Topic, as_json: AsJson = False) -> None:
    """Describe a topic: leaders, replicas, offsets, sizes, and settings that are not defaults.

    Example: fencepost topic describe refunds
    """
    with connection.open() as cluster:
        view = require_topic(cluster, topic)
        rows = _partition_rows(cluster, view)
        settings = own_settings(cluster, topic)
    head: dict[str, Any] = {
        "topic": topic,
        "topic_id": topic_id_text(view.topic_id),
        "is_internal": view.is_internal,
        "size_bytes": _sum(row["size_bytes"] for row in rows),
    }
    if as_json:
        output(as_json).details(head | {"settings": settings, "partitions": rows})
        return
    words = None if settings is None else [f"{name}={value}" for name, value in settings.items()]
    output(as_json).details(head | {"settings": words})
    can_go = ["isr", "replicas", "size_bytes", "log_start_offset"]
    output(as_json).table(rows, list(rows[0]), "The topic has no partitions.", can_go)


def _partition_rows(cluster: Cluster, view: TopicView) -> list[dict[str, Any]]:
    from fencepost.client.failures import ClientError
    from fencepost.client.topics import partition_offsets, replica_sizes

    led = [TopicPartition(view.name, p.index) for p in view.partitions if p.leader >= 0]
    offsets = cluster.run(partition_offsets(cluster.core, led))
    sizes: Mapping[tuple[int, TopicPartition], int] = {}
    # DescribeLogDirs needs DESCRIBE on the cluster, the rest of this command does not.
    with suppress(ClientError):
        sizes = cluster.run(replica_sizes(cluster.core, led))
    rows = []
    for p in view.partitions:
        place = TopicPartition(view.name, p.index)
        found = offsets.get(place)
        rows.append(
            {
                "partition": p.index,
                "leader": p.leader if p.leader >= 0 else None,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "log_start_offset": found and found.log_start_offset,
                "last_stable_offset": found and found.last_stable_offset,
                "high_watermark": found and found.high_watermark,
                "size_bytes": sizes.get((p.leader, place)),
            }
        )
    return rows


def own_settings(cluster: Cluster, topic: str) -> dict[str, str | None] | None:
    """Returns the settings of a topic that are not defaults; None if they may not be seen."""
    from fencepost.client.failures import Refused

    try:
        found = _settings(cluster, topic)
    except Refused:
        return None
    return {name: setting.value for name, setting in sorted(found.items()) if setting.is_own}


def _settings(cluster: Cluster, topic: str) -> dict[str, Setting]:
    from fencepost.client.admin import ResourceType
    from fencepost.client.configs import describe_settings

    return cluster.run(describe_settings(cluster.core, ResourceType.TOPIC, topic))


def _sum(sizes: Any) -> int | None:
    known = list(sizes)
    return None if None in known else sum(known)


@connected
def alter_command(
    connection: Connection,
    topic: Topic,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            metavar="N",
            help="How many partitions; only more than now.",
            min=1,
            max=INT32_MAX,
        ),
    ] = None,
    settings: Set = [],  # noqa: B006
    unset: Unset = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Add partitions or change settings, and show old and new values.

    A key goes to another partition if their number changes: records of one key are no longer in
    one partition.

    Example: fencepost topic alter refunds --partitions 12 --set retention.ms=86400000
    """
    from fencepost.cli.commands.config import change_settings
    from fencepost.client.admin import ResourceType
    from fencepost.client.topics import create_partitions

    changes: dict[str, str | None] = {**parse_settings(settings), **dict.fromkeys(unset)}
    if partitions is None and not changes:
        raise FencepostError("Nothing to change: give --partitions, --set or --unset.")
    rows: list[dict[str, Any]] = []
    with connection.open() as cluster:
        view = require_topic(cluster, topic)
        if partitions is not None:
            rows.append(_growth(view, partitions))
        if changes:
            rows += change_settings(cluster, ResourceType.TOPIC, topic, changes)
        if partitions is not None:
            _grow(cluster, create_partitions(cluster.core, topic, partitions), bool(changes))
    output(as_json).table(rows, ["name", "old", "new"], "Nothing was changed.", can_go=())


def _growth(view: TopicView, partitions: int) -> dict[str, Any]:
    now = len(view.partitions)
    if partitions <= now:
        raise FencepostError(
            f"Topic {view.name!r} has {now} partitions, and their number can only grow: give "
            f"--partitions above {now}. Nothing was changed."
        )
    return {"name": "partitions", "old": now, "new": partitions}


def _grow(cluster: Cluster, procedure: Any, has_changed: bool) -> None:
    try:
        cluster.run(procedure)
    except FencepostError as problem:
        if not has_changed:
            raise
        raise FencepostError(
            f"The settings were changed, but no partition was added: {problem}"
        ) from problem


@connected
def delete_command(
    connection: Connection,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="The topics.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete topics with all their records. It cannot be undone.

    Example: fencepost topic delete refunds-test --yes
    """
    with connection.open(long_running=True) as cluster:
        # All names are looked up first: a typing error deletes nothing.
        views = [require_topic(cluster, name) for name in dict.fromkeys(topics)]
        _refuse_internal(views)
        confirm(yes, _deletion(views))
        delete_each(
            "topic", [view.name for view in views], lambda name: cluster.delete_topics([name])
        )
    rows = [{"topic": view.name, "deleted": True} for view in views]
    output(as_json).table(rows, ["topic", "deleted"], "")


def _refuse_internal(views: Sequence[TopicView]) -> None:
    for view in views:
        if view.is_internal:
            raise FencepostError(
                f"{view.name} holds the state of the cluster's transactions or groups: it is not "
                "deleted. Nothing was changed."
            )


def _deletion(views: Sequence[TopicView]) -> str:
    sizes = {view.name: counted(len(view.partitions), "partition") for view in views}
    if len(views) == 1:
        ((name, partitions),) = sizes.items()
        return f"This will delete topic {name!r}: {partitions} and all records."
    named = ", ".join(f"{name!r} ({partitions})" for name, partitions in sizes.items())
    return f"This will delete {len(views)} topics and all their records: {named}."

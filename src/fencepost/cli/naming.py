"""Finds what a user named, or explains what is wrong with the name."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.base.options import suggest
from fencepost.cli.positions import chosen_partitions
from fencepost.cli.units import for_people, moment_for_people

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencepost.base.ids import TopicPartition
    from fencepost.client.admin import TopicView
    from fencepost.client.blocking import Cluster
    from fencepost.forensics.history.facts import IdFacts

Set = Annotated[
    list[str],
    typer.Option("--set", metavar="NAME=VALUE", help="A setting by Kafka's name; repeatable."),
]
Unset = Annotated[
    list[str],
    typer.Option("--unset", metavar="NAME", help="Return a setting to its default; repeatable."),
]


def require_topic(cluster: Cluster, name: str) -> TopicView:
    """Returns a topic; FencepostError with the nearest name if there is none."""
    from fencepost.client.failures import Refused

    found = None
    try:
        found = cluster.find_topic(name)
    except Refused as problem:
        if problem.code != ErrorCode.INVALID_TOPIC_EXCEPTION:
            raise
    if found is None:
        known = cluster.metadata().topics
        raise FencepostError(
            f"There is no topic {name!r}{suggest(name, known) or '.'} "
            "`fencepost topic list` shows all that you may see."
        )
    return found


def require_partition(cluster: Cluster, partition: TopicPartition) -> None:
    """Raises FencepostError if there is no such topic, or if it has no such partition."""
    topic = require_topic(cluster, partition.topic)
    indexes = [each.index for each in topic.partitions]
    chosen_partitions(indexes, [partition.partition], partition.topic)


def unknown_group(cluster: Cluster, name: str) -> FencepostError:
    """Returns the error for a group that cannot be described."""
    from fencepost.client.group_admin import list_groups

    known = {each.group: each.kind for each in cluster.run(list_groups(cluster.core))}
    if kind := known.get(name):
        return FencepostError(
            f"{name!r} is a {kind} group: only classic and consumer groups are described here."
        )
    return FencepostError(
        f"There is no group {name!r}{suggest(name, known) or '.'} "
        "`fencepost group list` shows all that you may see."
    )


def unknown_id(cluster: Cluster, facts: IdFacts) -> FencepostError:
    """Returns the error for a transactional id of which nothing was found, with what was read."""
    name, history = facts.transactional_id, facts.history
    read = []
    if not facts.is_hidden:
        read.append("its coordinator does not have it")
    if history is not None:
        read.append(f"{history.partition} has no record of it")
    problems = [*facts.problems]
    problems += [f"{each.partition}: {each.problem}." for each in facts.partitions if each.problem]
    if not read:
        return FencepostError(
            f"Whether the transactional id {name!r} exists is hidden from this user. "
            + _sentences(problems)
        )
    if history is not None and history.changes:
        removed_at = moment_for_people(history.changes[-1].at_ms)
        said = f"its coordinator removed it at {removed_at}: it had expired"
    else:
        said = f"{' and '.join(read)}. It was never used on this cluster, or it has expired"
    after = "" if facts.expiration_ms is None else f" after {for_people(facts.expiration_ms)}"
    said += f" (unused ids are removed{after}, transactional.id.expiration.ms)"
    known: list[str] = []
    with suppress(FencepostError):
        known = [each.transactional_id for each in cluster.list_transactions()]
    sentence = f"There is no transactional id {name!r}: {said}{suggest(name, known) or '.'}"
    return FencepostError(_sentences([sentence, *problems]))


def _sentences(problems: Iterable[str]) -> str:
    return " ".join(f"{each.rstrip('.')}." if not each.endswith("?") else each for each in problems)


def parse_settings(assignments: Iterable[str], option: str = "--set") -> dict[str, str]:
    """Reads NAME=VALUE; the value may be empty and may have an `=`."""
    settings: dict[str, str] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not name.strip():
            raise FencepostError(f"{option} {assignment!r} is not a setting: write NAME=VALUE.")
        if name.strip() in settings:
            raise FencepostError(f"{option} names {name.strip()} twice: give it one value.")
        settings[name.strip()] = value.strip()
    return settings

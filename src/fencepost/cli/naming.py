"""Finds what a user named, or explains what is wrong with the name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.base.failures import FencepostError
from fencepost.base.options import suggest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencepost.client.admin import TopicView
    from fencepost.client.blocking import Cluster

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
    found = cluster.find_topic(name)
    if found is None:
        known = cluster.metadata().topics
        raise FencepostError(
            f"There is no topic {name!r}{suggest(name, known) or '.'} "
            "`fencepost topic list` shows all that you may see."
        )
    return found


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

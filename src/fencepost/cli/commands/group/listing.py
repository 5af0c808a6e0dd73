"""`fencepost group list`, `describe` and `delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.base.failures import FencepostError
from fencepost.cli.confirmation import Yes, confirm, delete_each
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.naming import unknown_group
from fencepost.cli.output import output
from fencepost.cli.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.client.blocking import Cluster
    from fencepost.client.group_admin import GroupView, MemberView


@connected
def list_command(connection: Connection, as_json: AsJson = False) -> None:
    """List groups: kind (classic or consumer), state, coordinator.

    Example: fencepost group list
    """
    from fencepost.client.group_admin import list_groups

    with connection.open() as cluster:
        groups = cluster.run(list_groups(cluster.core))
    rows = [
        {
            "group": each.group,
            "kind": each.kind or None,
            "state": each.state or None,
            "protocol_type": each.protocol_type or None,
            "coordinator": each.coordinator,
        }
        for each in sorted(groups, key=lambda each: each.group)
    ]
    output(as_json).table(rows, list(rows[0]) if rows else [], "There are no groups.")


@connected
def describe_command(
    connection: Connection,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The name of a group.")],
    as_json: AsJson = False,
) -> None:
    """Describe a group: state, coordinator, members and what each of them reads.

    `fencepost lag GROUP` shows its offsets and its lag.

    Example: fencepost group describe refunds-service
    """
    from fencepost.client.routes import CoordinatorKey, CoordinatorKind

    with connection.open() as cluster:
        view = require_group(cluster, group)
        coordinator = cluster.find_coordinator(CoordinatorKey(CoordinatorKind.GROUP, group))
    head = {
        "group": group,
        "kind": view.kind,
        "state": view.state,
        "protocol_type": view.protocol_type or None,
        "assignor": view.assignor or None,
        "coordinator": coordinator,
    }
    rows = [_member(each) for each in view.members]
    shown = output(as_json)
    if as_json:
        shown.details(head | {"members": rows})
        return
    shown.details(head | {"members": len(rows)})
    if rows:
        columns = ["client_id", "host", "assigned", "member_id", "instance_id"]
        shown.table(rows, columns, "", ["instance_id", "member_id", "host"])


def _member(member: MemberView) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "topics": list(member.topics),
        "assigned": [f"{topic}-{index}" for topic, index in member.assigned],
    }


def require_group(cluster: Cluster, name: str) -> GroupView:
    """Returns a group; FencepostError with the nearest name if there is none."""
    from fencepost.client.group_admin import describe_group

    found = cluster.run(describe_group(cluster.core, name))
    if found is None:
        raise unknown_group(cluster, name)
    return found


def require_no_members(view: GroupView, reason: str) -> None:
    """FencepostError if a group has members."""
    if not view.members:
        return
    some = ", ".join(f"{each.client_id} at {each.host}" for each in view.members[:3])
    more = ", ..." if len(view.members) > 3 else ""
    raise FencepostError(
        f"Group {view.group!r} has {counted(len(view.members), 'member')} ({some}{more}), and "
        f"{reason}. Stop "
        "its consumers and try again. Nothing was changed."
    )


@connected
def delete_command(
    connection: Connection,
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="The groups.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete groups and their committed offsets. It cannot be undone.

    A group with members is refused.

    Example: fencepost group delete refunds-test --yes
    """
    from fencepost.client.group_admin import delete_group

    with connection.open(long_running=True) as cluster:
        # All names are looked up first: a typing error deletes nothing.
        views = [require_group(cluster, name) for name in dict.fromkeys(groups)]
        for view in views:
            require_no_members(view, "only a group without members can be deleted")
        found = [view.group for view in views]
        confirm(yes, _deletion(cluster, found))
        delete_each("group", found, lambda name: cluster.run(delete_group(cluster.core, name)))
    rows = [{"group": name, "deleted": True} for name in found]
    output(as_json).table(rows, ["group", "deleted"], "")


def _deletion(cluster: Cluster, groups: Sequence[str]) -> str:
    committed = {name: len(cluster.offset_fetch(name, require_stable=False)) for name in groups}
    offsets = {name: counted(count, "committed offset") for name, count in committed.items()}
    if len(groups) == 1:
        return f"This will delete group {groups[0]!r}: {offsets[groups[0]]}."
    named = ", ".join(f"{name!r} ({count})" for name, count in offsets.items())
    return f"This will delete {len(groups)} groups: {named}."

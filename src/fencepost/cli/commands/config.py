"""`fencepost config get` and `fencepost config set`: settings of topics, brokers and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.base.failures import FencepostError
from fencepost.base.options import suggest
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.layout import App
from fencepost.cli.naming import Unset, parse_settings, require_topic
from fencepost.cli.output import output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencepost.client.admin import ResourceType
    from fencepost.client.blocking import Cluster
    from fencepost.client.configs import Setting

app = App(help="Show and change settings of topics, brokers and groups.", no_args_is_help=True)

HIDDEN = "(hidden)"
"""Shown for the value of a sensitive setting, which the broker does not send."""

OfTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Of a topic.")]
OfBroker = Annotated[
    str | None,
    typer.Option("--broker", metavar="ID", help="Of a broker; `all`: the default of all brokers."),
]
OfGroup = Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Of a group.")]


@app.command("get", short_help="Show settings: value, source, default.")
@connected
def get_command(
    connection: Connection,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Only these settings.", show_default=False),
    ] = None,
    topic: OfTopic = None,
    broker: OfBroker = None,
    group: OfGroup = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Defaults, too, which are left out otherwise.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show settings with their source and the value that applies without them.

    The source is the layer that the value comes from: topic, broker, all brokers, file, default.

    Example: fencepost config get --topic refunds retention.ms
    """
    from fencepost.client.configs import describe_resource, describe_settings

    with connection.open() as cluster:
        resource, name = _resource(cluster, topic, broker, group)
        found = cluster.run(describe_settings(cluster.core, resource, name))
    for wanted in names or ():
        if wanted not in found:
            raise _unknown(wanted, found, describe_resource(resource, name))
    rows = [
        _row(setting)
        for key, setting in sorted(found.items())
        if (key in names if names else everything or setting.is_own)
    ]
    empty = f"All settings of {describe_resource(resource, name)} are defaults; --all shows them."
    output(as_json).table(rows, ["name", "value", "source", "default", "read_only"], empty)


@app.command("set", short_help="Change settings, and show old and new values.")
@connected
def set_command(
    connection: Connection,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="New values.", show_default=False),
    ] = None,
    unset: Unset = [],  # noqa: B006 - typer copies it
    topic: OfTopic = None,
    broker: OfBroker = None,
    group: OfGroup = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the broker check the values; change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Change settings, all or none of them, and show old and new values.

    Example: fencepost config set --topic refunds retention.ms=86400000 --unset cleanup.policy
    """
    changes: dict[str, str | None] = {
        **parse_settings(assignments or (), "The argument"),
        **dict.fromkeys(unset),
    }
    if not changes:
        raise FencepostError("Nothing to change: give NAME=VALUE, or --unset NAME.")
    with connection.open() as cluster:
        resource, name = _resource(cluster, topic, broker, group)
        rows = change_settings(cluster, resource, name, changes, dry_run=dry_run)
    output(as_json).table(rows, ["name", "old", "new"], "", can_go=())
    if dry_run:
        output(as_json).note("The broker accepts these values. Nothing was changed (--dry-run).")


def change_settings(
    cluster: Cluster,
    resource: ResourceType,
    name: str,
    changes: Mapping[str, str | None],
    *,
    dry_run: bool = False,
) -> list[dict[str, Any]]:
    """Changes settings; returns a row with the old and the new value of each.

    The broker's refusal of an unknown name gets the nearest known one.
    """
    from fencepost.client.configs import alter_settings, describe_resource, describe_settings
    from fencepost.client.failures import Refused

    before = cluster.run(describe_settings(cluster.core, resource, name))
    try:
        cluster.run(alter_settings(cluster.core, resource, name, changes, validate_only=dry_run))
    except Refused as problem:
        for wanted in changes:
            if wanted not in before:
                raise _unknown(wanted, before, describe_resource(resource, name)) from problem
        raise
    return [_change(key, value, before.get(key)) for key, value in changes.items()]


def _change(name: str, value: str | None, before: Setting | None) -> dict[str, Any]:
    if before is not None and before.is_sensitive:
        return {"name": name, "old": HIDDEN, "new": None if value is None else HIDDEN}
    new = value if value is not None else before and before.below
    return {"name": name, "old": before and before.value, "new": new}


def _resource(
    cluster: Cluster, topic: str | None, broker: str | None, group: str | None
) -> tuple[ResourceType, str]:
    from fencepost.client.admin import ResourceType
    from fencepost.client.configs import ALL_BROKERS

    if sum(each is not None for each in (topic, broker, group)) != 1:
        raise FencepostError("Say whose settings: --topic TOPIC, --broker ID or --group GROUP.")
    if topic is not None:
        require_topic(cluster, topic)
        return ResourceType.TOPIC, topic
    if group is not None:
        return ResourceType.GROUP, group
    assert broker is not None
    if broker == "all":
        return ResourceType.BROKER, ALL_BROKERS
    known = {str(node_id) for node_id in cluster.metadata(()).brokers}
    if broker not in known:
        raise FencepostError(
            f"The cluster has no live broker {broker!r}; its live brokers are "
            f"{', '.join(sorted(known))}."
        )
    return ResourceType.BROKER, broker


def _unknown(name: str, known: Mapping[str, Setting], where: str) -> FencepostError:
    return FencepostError(
        f"{where[0].upper()}{where[1:]} has no setting {name!r}{suggest(name, known) or '.'} "
        "`fencepost config get --all` shows all of them. Nothing was changed."
    )


def _row(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": HIDDEN if setting.is_sensitive else setting.value,
        "source": setting.source,
        "default": None if setting.is_sensitive else setting.below,
        "read_only": setting.read_only,
        "is_sensitive": setting.is_sensitive,
    }

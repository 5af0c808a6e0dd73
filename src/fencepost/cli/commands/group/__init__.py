"""`fencepost group`: consumer groups, on fencepost or Apache Kafka."""

from __future__ import annotations

from fencepost.cli.commands.group import listing, resetting
from fencepost.cli.layout import App

app = App(help="List and describe groups, reset their offsets, delete them.", no_args_is_help=True)
app.command("list", short_help="List groups with kind and state.")(listing.list_command)
app.command("describe", short_help="Describe members and assignments.")(listing.describe_command)
app.command("reset", short_help="Move a group's committed offsets.")(resetting.reset_command)
app.command("delete", short_help="Delete groups and their offsets.")(listing.delete_command)

__all__ = ["app"]

"""`fencepost topic`: topics and their records, on fencepost or Apache Kafka."""

from __future__ import annotations

from fencepost.cli.commands.topic import administration, consuming, producing
from fencepost.cli.layout import App

app = App(help="Create, describe and change topics; write and read records.", no_args_is_help=True)
app.command("list", short_help="List topics with partitions and replicas.")(
    administration.list_command
)
app.command("create", short_help="Create a topic.")(administration.create_command)
app.command("describe", short_help="Describe partitions, offsets, sizes, settings.")(
    administration.describe_command
)
app.command("alter", short_help="Add partitions, change settings.")(administration.alter_command)
app.command("delete", short_help="Delete topics and their records.")(administration.delete_command)
app.command("produce", short_help="Write records from lines or JSON.")(producing.produce_command)
app.command("consume", short_help="Print records as lines or JSON.")(consuming.consume_command)

__all__ = ["app"]

"""`fencepost txn`: transactions, on fencepost or Apache Kafka.

It uses the Kafka protocol only. One module per question; the facts come from `forensics`.
"""

from __future__ import annotations

from fencepost.cli.commands.txn import ending, hanging, listing, producers, timeline, why
from fencepost.cli.layout import App

app = App(
    help="List, describe and end transactions, on fencepost or Apache Kafka.",
    no_args_is_help=True,
)
app.command("list", short_help="List transactional ids.")(listing.list_command)
app.command("describe", short_help="Describe one transactional id.")(listing.describe_command)
app.command("producers", short_help="List the producers of partitions.")(
    producers.producers_command
)
app.command("find-hanging", short_help="Find transactions that nothing will end.")(
    hanging.find_hanging_command
)
app.command("fence", short_help="Abort an id's transaction, lock out its producer.")(
    ending.fence_command
)
app.command("abort", short_help="Abort a transaction, by id or on one partition.")(
    ending.abort_command
)
app.command("commit", short_help="Commit for a producer that no longer can.")(ending.commit_command)
app.command("why", short_help="Why was a producer fenced, or aborted?")(why.why_command)
app.command("timeline", short_help="Show the states of an id over time.")(timeline.timeline_command)

__all__ = ["app"]

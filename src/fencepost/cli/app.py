"""The typer app: all commands.

`main` runs `serve` without importing this; it is here for the help.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import fencepost
from fencepost.cli.commands import (
    acl,
    cluster,
    config,
    group,
    ledger,
    outbox,
    tap,
    topic,
    txn,
    user,
)
from fencepost.cli.commands.audit import audit
from fencepost.cli.commands.bench import can_measure
from fencepost.cli.commands.check import check
from fencepost.cli.commands.completion import ServeCommand, completion_command
from fencepost.cli.commands.demo import demo
from fencepost.cli.commands.dump import dump
from fencepost.cli.commands.lag import lag_command
from fencepost.cli.commands.pins import pins
from fencepost.cli.commands.records import records
from fencepost.cli.commands.repair import repair
from fencepost.cli.commands.top import top
from fencepost.cli.commands.topic.consuming import consume_command
from fencepost.cli.commands.topic.producing import produce_command
from fencepost.cli.layout import App

app = App(
    name="fencepost",
    help="Exactly-once for Python data teams: a transactional Kafka broker, and its tools.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help, so that all commands look alike: `serve` formats its own without typer.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(
    cls=ServeCommand,
    help="Run the broker. `fencepost serve --help` has its options.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def serve(context: typer.Context) -> None:
    """Runs the broker."""
    from fencepost.cli.commands.serve import serve as run

    sys.exit(run(context.args))


app.command(short_help="Show partitions that open transactions hold back.")(pins)
app.add_typer(txn.app, name="txn", short_help="List, describe and end transactions.")
app.add_typer(topic.app, name="topic", short_help="Manage topics; write and read records.")
app.add_typer(group.app, name="group", short_help="Manage consumer groups and their offsets.")
app.command("produce", short_help="Write records: `topic produce`.")(produce_command)
app.command("consume", short_help="Print records: `topic consume`.")(consume_command)
app.command(short_help="Watch transactions, their rates and pinned partitions live.")(top)
app.command("lag", short_help="Show a group's lag in records, hidden ones apart.")(lag_command)
app.add_typer(config.app, name="config", short_help="Show and change settings.")
app.add_typer(acl.app, name="acl", short_help="Show and change who may do what.")
app.add_typer(user.app, name="user", short_help="Manage the users that may log in.")
app.add_typer(cluster.app, name="cluster", short_help="Show and command the brokers of a cluster.")
app.add_typer(ledger.app, name="ledger", short_help="Manage the ledger of the Spark sink.")
app.add_typer(outbox.app, name="outbox", short_help="Relay an outbox of PostgreSQL to Kafka.")
app.command(short_help="Show each record of a partition with its fate.")(records)
app.command(short_help="Show log files without a broker.")(dump)
app.add_typer(
    tap.app, name="tap", short_help="Show what clients and brokers say to each other: a proxy."
)
app.command(short_help="Check a stopped data directory for damage.")(check)
app.command(short_help="Remove damaged records from partitions of a stopped directory.")(repair)
app.command(short_help="Compare a pipeline's output topics with its input, on Spark.")(audit)
app.command(short_help="Run a pipeline on Spark, kill each part in turn, audit it.")(demo)
app.command("completion", short_help="Print a script that completes commands in a shell.")(
    completion_command
)


@app.command(
    hidden=not can_measure(),
    help="Measure fencepost beside Apache Kafka on this machine. `fencepost bench --help` has "
    "its options.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def bench(context: typer.Context) -> None:
    """Runs the benchmarks of the checkout."""
    from fencepost.cli.commands.bench import bench as run

    sys.exit(run(context.args))


def _show_version(wanted: bool) -> None:
    if wanted:
        from fencepost.records import batch

        # The compiled broker is faster, so --version tells (docs/decisions/0007).
        is_compiled = not str(batch.__file__).endswith(".py")
        typer.echo(f"fencepost {fencepost.__version__}{' (compiled)' if is_compiled else ''}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options of `fencepost` itself."""

"""The typer app: all commands.

`main` runs `serve` without importing this; it is here for the help.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import fencepost
from fencepost.cli import cluster, ledger, txn
from fencepost.cli.bench import can_measure
from fencepost.cli.check import check
from fencepost.cli.demo import demo
from fencepost.cli.repair import repair
from fencepost.records import batch

app = typer.Typer(
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
    help="Run the broker. `fencepost serve --help` has its options.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def serve(context: typer.Context) -> None:
    """Runs the broker."""
    from fencepost.cli.serve import serve as run

    sys.exit(run(context.args))


app.add_typer(txn.app, name="txn")
app.add_typer(cluster.app, name="cluster", short_help="Show and command the brokers of a cluster.")
app.add_typer(ledger.app, name="ledger", short_help="Manage the ledger of the Spark sink.")
app.command(short_help="Check a stopped data directory for damage.")(check)
app.command(short_help="Remove damaged records from partitions of a stopped directory.")(repair)
app.command(short_help="Run a pipeline on Spark, kill each part in turn, audit it.")(demo)


@app.command(
    hidden=not can_measure(),
    help="Measure fencepost beside Apache Kafka on this machine. `fencepost bench --help` has "
    "its options.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def bench(context: typer.Context) -> None:
    """Runs the benchmarks of the checkout."""
    from fencepost.cli.bench import bench as run

    sys.exit(run(context.args))


def _show_version(wanted: bool) -> None:
    if wanted:
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

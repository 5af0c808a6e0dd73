"""Everything but `serve`, which `main` takes before this is imported; it is listed here for the help."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import fencepost
from fencepost.cli import ledger, txn
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
    # One kind of help for all commands: `serve` shows its own, because it does not import typer.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(
    help="Run the broker. `fencepost serve --help` has its options.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def serve(context: typer.Context) -> None:
    from fencepost.cli.serve import serve as run

    sys.exit(run(context.args))


app.add_typer(txn.app, name="txn")
app.add_typer(ledger.app, name="ledger", short_help="Look after the ledger of the Spark sink.")
app.command(short_help="Read a stopped data directory, and say what is wrong with it.")(check)
app.command(short_help="Take damaged records out of a stopped partition.")(repair)
app.command(short_help="Run a pipeline on Spark, kill everything in turn, audit it.")(demo)


@app.command(
    hidden=not can_measure(),
    help="Measure fencepost beside Apache Kafka on this machine. `fencepost bench --help` has "
    "its options.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def bench(context: typer.Context) -> None:
    from fencepost.cli.bench import bench as run

    sys.exit(run(context.args))


def _show_version(wanted: bool) -> None:
    if wanted:
        # Whoever asks why one broker is faster than another sees it here (docs/decisions/0007).
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
    """Options of the command itself."""

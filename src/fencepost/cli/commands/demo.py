"""`fencepost demo`: runs the refunds pipeline on Spark, kills its parts, and audits the output."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fencepost.cli.connection import SERVERS_NAMES
from fencepost.cli.main import INTERRUPTED

if TYPE_CHECKING:
    from fencepost_examples.demo.run import DemoOptions, History

KILLS: Final = 6
KILLS_OF_SEVERAL: Final = 10
"""Enough to hit everything twice, with several brokers or with PostgreSQL."""

MAX_BROKERS: Final = 9
"""More than a demo needs; each is a process beside Spark's."""


def demo(
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Repeat the kills of an earlier run.", show_default="random"
        ),
    ] = None,
    kills: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How many kills while the queries run. The loader is killed once after that; "
            "0 kills nothing.",
            min=0,
            show_default="6; 10 with several brokers or PostgreSQL",
        ),
    ] = None,
    settlements: Annotated[
        int, typer.Option(metavar="N", help="How many settlements to decide.", min=1)
    ] = 12_000,
    per_batch: Annotated[
        int, typer.Option(metavar="N", help="Settlements per micro-batch.", min=1)
    ] = 500,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            *SERVERS_NAMES,
            metavar="HOST:PORT",
            help="Use this Kafka, and do not kill it. The demo creates and deletes its own topics.",
            show_default="starts a broker",
        ),
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Start this many brokers. With several, one at a time is killed, paused or "
            "rolled: the transaction coordinator, a leader, or any.",
            min=1,
            max=MAX_BROKERS,
        ),
    ] = 1,
    daily_limit: Annotated[
        bool,
        typer.Option("--daily-limit", help="Run the stateful query: a limit per merchant and day."),
    ] = False,
    postgres: Annotated[
        bool,
        typer.Option(
            "--postgres",
            help="Refunds are requested and paid in PostgreSQL: in by the outbox, out by the sink. "
            "PostgreSQL and the relay are killed, too.",
        ),
    ] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="Do not run the at-least-once query.")
    ] = False,
    picture: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Write the picture here, as SVG.", dir_okay=False),
    ] = Path("fencepost-demo.svg"),
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep logs, checkpoints, topics and tables here."),
    ] = None,
    broker_only: Annotated[
        bool,
        typer.Option("--broker-only", help="Run the small demo: a broker and clients, no Spark."),
    ] = False,
) -> None:
    """Run the refunds pipeline on Spark, kill each part in turn, and audit the output.

    Takes about three minutes. The exit code is 1 if a refund was lost or doubled.

    Example: fencepost demo --seed 7
    """
    _refuse_brokers_of_others(brokers, bootstrap_servers, broker_only=broker_only)
    if postgres:
        _require_postgres(
            {
                "--bootstrap-servers": bootstrap_servers is not None,
                "--daily-limit": daily_limit,
                "--broker-only": broker_only,
            }
        )
    if broker_only:
        from fencepost_examples.demo.broker_only import demo_broker

        demo_broker()
        return
    from fencepost_examples.demo.run import DemoOptions

    # Before the run: a failure afterwards would lose the picture.
    picture.parent.mkdir(parents=True, exist_ok=True)
    options = DemoOptions(
        settlements=settlements,
        per_batch=per_batch,
        kills=(KILLS_OF_SEVERAL if brokers > 1 or postgres else KILLS) if kills is None else kills,
        seed=secrets.randbelow(10_000) if seed is None else seed,
        compare=not (alone or postgres),
        daily_limit=daily_limit,
        bootstrap_servers=bootstrap_servers,
        brokers=brokers,
        postgres=postgres,
        keep=keep,
    )
    history = _run(options)
    _conclude(history, options, picture)


def _refuse_brokers_of_others(
    brokers: int, bootstrap_servers: str | None, *, broker_only: bool
) -> None:
    if brokers == 1 or not (broker_only or bootstrap_servers):
        return
    other = "--broker-only" if broker_only else "--bootstrap-servers"
    raise typer.BadParameter(f"--brokers starts brokers of the Spark demo; leave out {other}")


def _require_postgres(others: Mapping[str, bool]) -> None:
    """Refuses what --postgres does not go with; FencepostError says what to install."""
    for option, is_given in others.items():
        if is_given:
            raise typer.BadParameter(f"--postgres is a demo of its own; leave out {option}")
    from fencepost.outside.connection import require_psycopg
    from fencepost_examples.postgres import binaries

    require_psycopg()
    binaries()


def _run(options: DemoOptions) -> History:
    from fencepost_examples.demo.display import Clock, display
    from fencepost_examples.demo.interrupt import Interrupted
    from fencepost_examples.demo.run import require_spark, run_demo

    require_spark()
    clock = Clock()
    try:
        with display(clock) as shown:
            what = "kill -9" if options.brokers == 1 else "kill -9, pause or roll"
            shown.say(
                f"seed {options.seed}: {options.settlements:,} settlements, {options.kills} x "
                f"{what}"
            )
            return run_demo(options, shown, clock)
    except Interrupted:
        typer.echo("Stopped; nothing is left running.", err=True)
        sys.exit(INTERRUPTED)


def _conclude(history: History, options: DemoOptions, picture: Path) -> None:
    from fencepost_examples.demo.picture import draw
    from fencepost_examples.demo.report import has_passed, write_report

    typer.echo("")
    for line in write_report(history, options):
        typer.echo(line)
    picture.write_text(draw(history, options), encoding="utf-8")
    typer.echo(f"The picture: {picture}")
    if options.keep is not None:
        typer.echo(f"Everything else: {options.keep}")
    if not has_passed(history, options):
        raise typer.Exit(1)

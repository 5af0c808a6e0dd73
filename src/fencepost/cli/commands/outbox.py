"""`fencepost outbox`: rows of PostgreSQL to Kafka, exactly once."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fencepost.base.failures import FencepostError
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.layout import App
from fencepost.cli.output import COMMAND_INDENT, output
from fencepost.cli.units import size_for_people

if TYPE_CHECKING:
    from fencepost.outside.outbox.database import Outbox
    from fencepost.outside.outbox.source import RelayCounts
    from fencepost.outside.outbox.status import RelayStatus

app = App(help="Relay an outbox of PostgreSQL to Kafka, exactly once.", no_args_is_help=True)

DSN_VARIABLE: Final = "FENCEPOST_POSTGRES_DSN"
API_TIMEOUT_MS: Final = "60000"
"""As Kafka's clients: a relay outlives the restart of a broker."""
_MEGABYTE: Final = 1_000_000

Postgres = Annotated[
    str | None,
    typer.Option(
        "--postgres",
        metavar="DSN",
        help=f"The database: a URI, or host=... dbname=...  [env var: {DSN_VARIABLE}]",
    ),
]
Id = Annotated[
    str,
    typer.Option("--transactional-id", metavar="ID", help="Names the relay, here and in Kafka."),
]


class Mode(Enum):
    """Where the rows are read."""

    WAL = "wal"
    TABLE = "table"


ReadMode = Annotated[
    Mode,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="wal: read the log (logical decoding); table: read a table that numbers its rows.",
    ),
]
Table = Annotated[
    str, typer.Option("--table", metavar="TABLE", help="The outbox, as in SQL: sales.outbox.")
]
Messages = Annotated[
    str | None,
    typer.Option(
        "--messages",
        metavar="PREFIX",
        help="No table: messages of pg_logical_emit_message with this prefix.",
    ),
]
Slot = Annotated[
    str | None,
    typer.Option("--slot", metavar="NAME", help="The slot; by default named after the id."),
]
Publication = Annotated[
    str | None,
    typer.Option("--publication", metavar="NAME", help="The publication; likewise."),
]
PositionTopic = Annotated[
    str | None,
    typer.Option(
        "--position-topic",
        metavar="TOPIC",
        help="Where the position is; by default fencepost-outbox-ID.",
    ),
]


class Accept(Enum):
    """What a start may accept: the names of `Reason`."""

    FOREIGN = "foreign"
    RESTORED = "restored"
    LOST_POSITION = "lost-position"
    NEW_SLOT = "new-slot"
    NEW_PUBLICATION = "new-publication"
    OTHER_SOURCE = "other-source"
    FAILED_OVER = "failed-over"


class Refused(Enum):
    """What happens to a row that no topic accepts: the names of `OnRefused`."""

    STOP = "stop"
    DEAD_LETTER = "dead-letter"


@app.command("init", short_help="Create what the relay needs in the database.")
def init_command(
    transactional_id: Id,
    postgres: Postgres = None,
    mode: ReadMode = Mode.WAL,
    table: Table = "outbox",
    messages: Messages = None,
    slot: Slot = None,
    publication: Publication = None,
    relay_user: Annotated[
        str | None,
        typer.Option(metavar="USER", help="Grant this user what the relay needs."),
    ] = None,
    failover: Annotated[
        bool,
        typer.Option("--failover", help="A slot that standbys keep too (PostgreSQL 17)."),
    ] = False,
    shards: Annotated[
        int | None,
        typer.Option(metavar="N", help="Mode table: how many commits may go side by side; 8."),
    ] = None,
    key_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Mode table: chooses the shard; key or aggregateid."),
    ] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the SQL with its rights; run nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create what the relay needs in the database: tables, publication, slot or triggers, rights.

    What is there already is left as it is.

    Example: fencepost outbox init --postgres dbname=shop --transactional-id shop-outbox
    """
    from fencepost.outside.connection import Database
    from fencepost.outside.outbox.numbering import USUAL_SHARDS
    from fencepost.outside.outbox.setup import Shards, init, statements

    outbox = _outbox(transactional_id, mode, table, messages, slot, publication)
    shown = output(as_json)
    if mode is Mode.WAL and (shards is not None or key_column is not None):
        raise FencepostError("--shards and --key-column of init are for --mode table.")
    gap = None
    if print_only:
        column = "aggregateid" if key_column is None else key_column
        numbers = Shards(USUAL_SHARDS if shards is None else shards, column)
        steps = list(statements(outbox, relay_user, survives_failover=failover, shards=numbers))
    else:
        steps, gap = init(
            Database(_dsn(postgres)),
            outbox,
            relay_user,
            survives_failover=failover,
            shards=shards,
            key_column=key_column,
        )
    rows: list[dict[str, Any]] = [{"right": each.right, "sql": each.sql} for each in steps]
    if gap is not None:
        _say(gap)
    if as_json:
        shown.table(rows, ["right", "sql"], "")
        return
    if print_only and mode is Mode.TABLE and key_column is None:
        shown.note("-- For a table whose key is in another column than aggregateid: --key-column.")
    for row in rows:
        shown.note(f"-- {row['right']}")
        sql = f"{row['sql']};".replace("\n", f"\n{COMMAND_INDENT}")
        shown.note(f"{COMMAND_INDENT}{sql}" if print_only else sql)
    if not print_only and gap is None:
        shown.note(_what_is_next(mode, transactional_id))


def _what_is_next(mode: Mode, transactional_id: str) -> str:
    more = " --mode table" if mode is Mode.TABLE else ""
    return f"Ready for `fencepost outbox relay{more} --transactional-id {transactional_id}`."


@app.command("relay", short_help="Relay rows as they are committed.")
@connected
def relay_command(
    connection: Connection,
    transactional_id: Id,
    postgres: Postgres = None,
    mode: ReadMode = Mode.WAL,
    table: Table = "outbox",
    messages: Messages = None,
    topic: Annotated[
        str,
        typer.Option(metavar="NAME", help="The topic; * stands for the row's topic column."),
    ] = "*",
    topic_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="By default topic or aggregatetype.")
    ] = None,
    key_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="By default key or aggregateid.")
    ] = None,
    value_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="By default value or payload.")
    ] = None,
    slot: Slot = None,
    publication: Publication = None,
    position_topic: PositionTopic = None,
    rows_per_chunk: Annotated[
        int, typer.Option("--chunk", metavar="ROWS", help="Rows per Kafka transaction.", min=1)
    ] = 10_000,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole-transactions",
            help="Never split a transaction of the database over two of Kafka.",
        ),
    ] = False,
    transaction_timeout: Annotated[
        int,
        typer.Option(metavar="SECONDS", help="Of a Kafka transaction.", min=3, max=86_400),
    ] = 60,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when what is there now is in Kafka.")
    ] = False,
    on_refused: Annotated[
        Refused,
        typer.Option(
            "--on-refused",
            metavar="WHAT",
            help="A row that no topic accepts: stop at it, or write a dead-letter in its place.",
        ),
    ] = Refused.STOP,
    dead_letter_topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="By default fencepost-outbox-ID-dead-letters."),
    ] = None,
    commit_timestamps: Annotated[
        bool,
        typer.Option("--commit-timestamps", help="Give records the time of their commit."),
    ] = False,
    max_held_wal: Annotated[
        int | None,
        typer.Option(metavar="MB", help="End if the slot holds more, and nothing moves.", min=1),
    ] = None,
    accept: Annotated[
        list[Accept] | None,
        typer.Option(metavar="WHAT", help="Start in spite of this, once: the refusal names it."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus here."),
    ] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Allow --metrics beyond this machine.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Relay rows as they are committed, until Ctrl-C or SIGTERM.

    An error of either side ends it; the next start goes on where Kafka says.

    Example: fencepost outbox relay --postgres dbname=shop --transactional-id shop-outbox
    """
    from fencepost.broker.settings.refusals import metrics_address
    from fencepost.outside.outbox.metrics import serve_metrics
    from fencepost.outside.outbox.refused import OnRefused
    from fencepost.outside.outbox.relay import OutboxRelay, RelaySettings
    from fencepost.outside.outbox.rows import ColumnNames
    from fencepost.outside.outbox.rules import Limits, Reason

    if mode is Mode.TABLE and max_held_wal is not None:
        raise FencepostError("--max-held-wal is for --mode wal: mode table has no slot.")
    if dead_letter_topic is not None and on_refused is not Refused.DEAD_LETTER:
        raise FencepostError("--dead-letter-topic is for --on-refused dead-letter.")
    columns = ColumnNames(topic_column, key_column, value_column)
    if messages is not None and (topic != "*" or any(columns)):
        raise FencepostError("--topic and --...-column are for tables: a message names its topic.")
    outbox = _outbox(transactional_id, mode, table, messages, slot, publication)
    timeout_ms = transaction_timeout * 1_000
    settings = RelaySettings(
        Limits(rows=rows_per_chunk, open_ms=timeout_ms // 3, may_split=not whole),
        columns,
        topic,
        position_topic,
        timeout_ms,
        None if max_held_wal is None else max_held_wal * _MEGABYTE,
        OnRefused(on_refused.value),
        {Reason(each.value) for each in accept or ()},
        dead_letter_topic,
        commit_timestamps,
    )
    address = metrics_address(metrics, allow_remote=allow_remote)
    connection = connection.with_defaults(default_api_timeout_ms=API_TIMEOUT_MS)
    database = _dsn(postgres)
    # It also says that it cannot cancel the query of a connection that was lost.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    with connection.open(long_running=True) as cluster:
        relay = OutboxRelay(database, cluster, outbox, settings)
        if address is not None:
            port = serve_metrics(relay.counts, address.host, address.port)
            _say(f"metrics at http://{address.host}:{port}/metrics")
        stop = _stopped_by_signals()
        counts = relay.run(stop, until_caught_up=until_caught_up, on_progress=_Progress())
    output(as_json).details(
        {"rows": counts.rows, "transactions": counts.chunks, "dead_letters": counts.dead_letters}
    )


@app.command("status", short_help="Show how far a relay is, and what its slot holds.")
@connected
def status_command(
    connection: Connection,
    transactional_id: Id,
    postgres: Postgres = None,
    mode: ReadMode = Mode.WAL,
    table: Table = "outbox",
    messages: Messages = None,
    slot: Slot = None,
    publication: Publication = None,
    position_topic: PositionTopic = None,
    as_json: AsJson = False,
) -> None:
    """Show how far a relay is, what its slot holds, and whether a start would be refused.

    Example: fencepost outbox status --postgres dbname=shop --transactional-id shop-outbox
    """
    from fencepost.outside.connection import Database
    from fencepost.outside.outbox.status import read_status

    outbox = _outbox(transactional_id, mode, table, messages, slot, publication)
    database = Database(_dsn(postgres))
    with connection.look() as cluster:
        found = read_status(database, cluster, outbox, position_topic)
    position, row = found.position, found.row
    output(as_json).details(
        {
            "transactional_id": transactional_id,
            "source": outbox.source,
            "is_running": found.is_active,
            "chunk": position.chunk if position else None,
            "cursor": str(position.cursor) if position else None,
            "chunk_in_database": row.chunk if row else None,
            "cursor_in_database": str(row.cursor) if row else None,
            **_of_mode(outbox, found),
            "refusal": found.refusal,
        }
    )


def _of_mode(outbox: Outbox, found: RelayStatus) -> dict[str, Any]:
    from fencepost.outside.outbox.lsn import lsn_text

    if found.held is None:
        return {"rows_left": found.rows_left}
    noted = found.row.confirmed if found.row else None
    return {
        "confirmed_in_database": None if noted is None else lsn_text(noted),
        "slot": outbox.slot,
        "confirmed_lsn": found.confirmed_lsn,
        "held_wal_bytes": found.held.size_bytes,
    }


def _outbox(
    transactional_id: str,
    mode: Mode,
    table: str,
    messages: str | None,
    slot: str | None,
    publication: str | None,
) -> Outbox:
    from fencepost.outside.outbox.database import Outbox

    return Outbox.of(
        transactional_id,
        table=table if messages is None else None,
        prefix=messages or "",
        slot=slot,
        publication=publication,
        mode=mode.value,
    )


def _dsn(given: str | None) -> str:
    dsn = given or os.environ.get(DSN_VARIABLE)
    if not dsn:
        raise FencepostError(
            f"Name the database with --postgres DSN, or {DSN_VARIABLE}: dbname=shop host=localhost."
        )
    return dsn


def _stopped_by_signals() -> threading.Event:
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    return stop


class _Progress:
    """Says how the first catch-up goes, and when it is over."""

    def __init__(self) -> None:
        from fencepost.cli.progress import ProgressLine

        self._line = ProgressLine()
        self._began = time.monotonic()
        self._is_over = False

    def __call__(self, counts: RelayCounts) -> None:
        if self._is_over:
            return
        if counts.has_caught_up:
            self._is_over = True
            self._line.clear()
            _say(f"caught up: {counts.rows:,} rows so far")
            return
        rate = counts.rows / max(time.monotonic() - self._began, 0.001)
        left = "counting what is left"
        if counts.behind_bytes is not None:
            left = f"{size_for_people(counts.behind_bytes)} of the log to go"
        elif counts.behind_rows is not None:
            left = f"{counts.behind_rows:,} to go"
        self._line.show(f"{counts.rows:,} rows relayed, {rate:,.0f} rows/s, {left}")


def _say(sentence: str) -> None:
    print(f"fencepost: {sentence}", file=sys.stderr, flush=True)

"""`fencepost topic produce`: writes records from lines.

Without --transaction the producer is idempotent: a retry writes nothing twice, and what was
acknowledged before a failure stays. With it all lines are one transaction; whatever goes wrong, it
is aborted by a new epoch of its id (InitProducerId) over a new connection, so that requests of the
failed producer that are still on their way are fenced.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fencepost.base.failures import FencepostError
from fencepost.cli.connection import Connection, connected
from fencepost.cli.main import complain
from fencepost.cli.naming import require_topic
from fencepost.cli.output import output
from fencepost.cli.units import counted

if TYPE_CHECKING:
    from fencepost.cli.record_lines import ReadLine
    from fencepost.client.blocking import Cluster
    from fencepost.client.record_writer import RecordWriter
    from fencepost.client.transactions import ProducerIdentity

BATCH_BYTES: Final = 1 << 18
_BATCH_OVERHEAD_BYTES: Final = 128
DELIVERY_TIMEOUT_MS: Final = "30000"
"""Long enough for a broker that restarts; a person still waits for it."""


class Acks(Enum):
    """Who must have a record before it is acknowledged."""

    ALL = "all"
    LEADER = "1"


class UnwrittenLineError(FencepostError):
    """A line that is not a record."""

    def __init__(self, number: int, problem: Exception) -> None:
        reason = str(problem)
        end = "" if reason.endswith("?") else "."
        super().__init__(f"Line {number} was not written: {reason}{end}")


@connected
def produce_command(
    connection: Connection,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The name of a topic.")],
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="The lines; standard input by default."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Lines are keys and values with TEXT between."),
    ] = None,
    null: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A key or value that is exactly TEXT is null."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Each line is a JSON object; so is the result.")
    ] = False,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", metavar="P", help="Write everything to this partition.", min=0
        ),
    ] = None,
    transaction: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Write all lines in one transaction of this id."),
    ] = None,
    transaction_timeout: Annotated[
        int,
        typer.Option(metavar="SECONDS", help="The transaction's timeout.", min=1, max=86_400),
    ] = 60,
    acks: Annotated[
        Acks,
        typer.Option(
            metavar="WHO",
            help="Who must have a record: all, the in-sync replicas; or 1, the leader alone.",
        ),
    ] = Acks.ALL,
) -> None:
    r"""Write records, one per line, and report how many were acknowledged.

    Text lines are values. JSON lines have "key", "value", "headers", "partition" and
    "timestamp_ms", all optional. A value may be an object, which is written as JSON; "key_base64"
    and "value_base64" hold other bytes than text. With --transaction nothing is visible to
    read_committed readers before all of it is: an error or Ctrl-C aborts it.

    Example: fencepost topic produce refunds records.txt --key-separator =
    """
    read_line = _reader(as_json, key_separator, null)
    if transaction is not None and acks is not Acks.ALL:
        raise FencepostError("--transaction needs --acks all: a commit waits for all replicas.")
    if transaction == "":
        raise FencepostError("--transaction needs an id: it names the transaction's producer.")
    connection = connection.with_defaults(delivery_timeout_ms=DELIVERY_TIMEOUT_MS)
    with _input(file) as descriptor, connection.open(long_running=True) as cluster:
        run = _Run(connection, cluster, topic, partition, descriptor, read_line)
        if transaction is None:
            row = run.plain(acks)
        else:
            row = run.in_transaction(transaction, transaction_timeout * 1_000)
    output(as_json).details(row)


def _reader(as_json: bool, key_separator: str | None, null: str | None) -> ReadLine:
    from fencepost.cli.record_lines import read_json, text_reader

    if not as_json:
        if key_separator == "":
            raise FencepostError("--key-separator must have at least one character.")
        return text_reader(key_separator, null)
    if key_separator is not None or null is not None:
        raise FencepostError("--key-separator and --null are for text; JSON has fields and null.")
    return read_json


@contextmanager
def _input(file: str | None) -> Iterator[int]:
    if file is None or file == "-":
        if sys.stdin is None:
            raise FencepostError("Standard input is closed: name a FILE with the lines.")
        if sys.stdin.isatty():
            complain("type one record per line; Ctrl-D ends")
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
        os.read(descriptor, 0)
    except OSError as problem:
        raise FencepostError(f"{file} cannot be read: {problem.strerror}.") from problem
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Run:
    """One run of the command, from lines to acknowledgements."""

    def __init__(
        self,
        connection: Connection,
        cluster: Cluster,
        topic: str,
        partition: int | None,
        descriptor: int,
        read_line: ReadLine,
    ) -> None:
        from fencepost.cli.positions import chosen_partitions

        self._connection = connection
        self._cluster = cluster
        self._topic = topic
        view = require_topic(cluster, topic)
        self._partitions = [p.index for p in view.partitions]
        self._available = [p.index for p in view.partitions if p.leader >= 0]
        if partition is not None:
            chosen_partitions(self._partitions, [partition], topic)
        self._partition = partition
        self._descriptor = descriptor
        self._read_line = read_line
        self._batch_bytes = _batch_bytes(cluster, topic)

    def plain(self, acks: Acks) -> dict[str, Any]:
        """Writes without a transaction; what is acknowledged stays."""
        from fencepost.client.failures import ClientError
        from fencepost.client.writer import ALL_REPLICAS, LEADER_ONLY

        identity = _idempotent_identity(self._cluster, self._topic)
        replicas = ALL_REPLICAS if acks is Acks.ALL else LEADER_ONLY
        with self._cluster.writer(identity, acks=replicas) as sealed:
            writer = self._record_writer(sealed)
            try:
                self._write_all(writer)
            except UnwrittenLineError as problem:
                writer.flush()
                raise FencepostError(f"{problem} {_kept(writer)}") from problem
            except ClientError as problem:
                raise FencepostError(f"{_failed_at(writer, problem)} {_kept(writer)}") from problem
            except KeyboardInterrupt:
                complain(f"interrupted. {_kept(writer)}")
                raise
        return self._row(writer)

    def in_transaction(self, transactional_id: str, timeout_ms: int) -> dict[str, Any]:
        """Writes everything in one transaction, or nothing."""
        from fencepost.client.failures import ClientError

        identity = self._cluster.init_producer_id(transactional_id, timeout_ms)
        with self._cluster.writer(identity) as sealed:
            writer = self._record_writer(sealed)
            try:
                self._write_all(writer)
            except UnwrittenLineError as problem:
                outcome = self._abort(transactional_id, timeout_ms)
                raise FencepostError(f"{problem} {outcome}") from problem
            except ClientError as problem:
                outcome = self._abort(transactional_id, timeout_ms)
                raise FencepostError(f"{_failed_at(writer, problem)} {outcome}") from problem
            except KeyboardInterrupt:
                complain(f"interrupted. {self._abort(transactional_id, timeout_ms)}")
                raise
        if writer.count:
            self._cluster.end_txn(identity, commit=True)
        outcome = "committed" if writer.count else "nothing to commit"
        return self._row(writer) | {"transaction": transactional_id, "outcome": outcome}

    def _record_writer(self, sealed: Any) -> RecordWriter:
        from fencepost.client.record_writer import RecordWriter

        return RecordWriter(
            sealed,
            self._topic,
            self._partitions,
            available=self._available,
            batch_bytes=self._batch_bytes,
        )

    def _write_all(self, writer: RecordWriter) -> None:
        from fencepost.cli.record_lines import LineError, read_lines

        number = 0
        for line in read_lines(self._descriptor):
            if line is None:
                writer.send()
                continue
            number += 1
            try:
                found = self._read_line(line)
                chosen = self._partition if found.partition is None else found.partition
                if chosen is not None and chosen not in self._partitions:
                    raise LineError(f"the topic has no partition {chosen}")
            except LineError as problem:
                raise UnwrittenLineError(number, problem) from problem
            writer.add(found.record, number, chosen)
        writer.flush()

    def _abort(self, transactional_id: str, timeout_ms: int) -> str:
        """Aborts the transaction, and says what became of it."""
        try:
            with self._connection.open(long_running=True) as other:
                other.init_producer_id(transactional_id, timeout_ms)
        except FencepostError as problem:
            seconds = timeout_ms // 1_000
            return (
                "The transaction could not be aborted and ends by its timeout, after "
                f"{seconds} s: nothing of it is visible to read_committed readers. ({problem})"
            )
        return "The transaction was aborted: nothing of it is visible."

    def _row(self, writer: RecordWriter) -> dict[str, Any]:
        by_partition = {str(index): n for index, n in sorted(writer.acknowledged.items())}
        return {
            "topic": self._topic,
            "acknowledged": writer.count,
            "by_partition": by_partition,
        }


def _idempotent_identity(cluster: Cluster, topic: str) -> ProducerIdentity:
    from fencepost.base.errors import ErrorCode
    from fencepost.client.failures import Refused

    try:
        return cluster.init_producer_id(None)
    except Refused as problem:
        if problem.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        # Kafka gives a producer id to anyone who may write to some topic (KIP-679).
        raise FencepostError(
            f"{problem}: grant this user WRITE on topic {topic!r}. Nothing was written."
        ) from problem


def _batch_bytes(cluster: Cluster, topic: str) -> int:
    """Returns how large a batch may be: a refused batch should hold one line, which is then named.

    Without the right to see the topic's settings, Kafka's default applies.
    """
    from fencepost.client.admin import ResourceType
    from fencepost.client.failures import Refused

    try:
        found = cluster.describe_configs(ResourceType.TOPIC, topic, ["max.message.bytes"])
        most = int(found["max.message.bytes"].value or BATCH_BYTES)
    except (Refused, KeyError, ValueError):
        return BATCH_BYTES
    return max(1, min(BATCH_BYTES, most - _BATCH_OVERHEAD_BYTES))


def _failed_at(writer: RecordWriter, problem: Exception) -> str:
    partition = getattr(problem, "partition", None)
    numbers = writer.oldest_unacknowledged(None if partition is None else partition.partition)
    if numbers is None:
        return f"{problem}."
    first, last = numbers
    lines = f"Line {first} was" if first == last else f"Lines {first} to {last} were"
    return f"{lines} not acknowledged: {problem}."


def _kept(writer: RecordWriter) -> str:
    verb = "was acknowledged and is" if writer.count == 1 else "were acknowledged and are"
    kept = f"{counted(writer.count, 'record')} {verb} kept"
    if writer.oldest_unacknowledged() is not None:
        return f"{kept}; later ones may have been written."
    return f"{kept}."

"""A run of a query: what the sink checks when it begins, and keeps between two batches."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencepost.base.failures import FencepostError
from fencepost.spark.doors.checks import check_start
from fencepost.spark.doors.parts import without_loops
from fencepost.spark.engine.read_topics import NO_TOPICS, read_in_batch, topics_by_id
from fencepost.spark.engine.session import allows_barrier
from fencepost.spark.ledger.entry import with_damage
from fencepost.spark.ledger.sources import use_sources
from fencepost.spark.ledger.writer import write_entry
from fencepost.spark.sentences import while_reaching
from fencepost.spark.transaction.identity import DriverProducer
from fencepost.spark.transaction.transaction import NOT_READ
from fencepost.spark.ways.row_writer import RowWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.doors.calls import RunCalls
    from fencepost.spark.engine.micro_batch import MicroBatch
    from fencepost.spark.ledger.entry import LedgerView
    from fencepost.spark.ledger.sources import SourceUse
    from fencepost.spark.ledger.store import LedgerStore
    from fencepost.spark.settings import SinkSettings
    from fencepost.spark.ways.row_writer import Part

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RunState:
    """What the driver keeps between two batches of one run of a query."""

    micro_batch: MicroBatch
    """The current batch of this run, or the last one."""
    producer: DriverProducer
    sources: SourceUse
    may_loop: bool
    """Whether the query may read topics of the sink's cluster."""
    writer: RowWriter
    view: LedgerView = NOT_READ

    def without_loops(self, parts: tuple[Part, ...], ledger: LedgerStore) -> tuple[Part, ...]:
        """The parts, whose rows cannot go to a topic that the query reads."""
        if self.sources.are_known:
            read = read_in_batch(self.sources.read, self.micro_batch)
        else:
            read = topics_by_id(self.micro_batch.end_offsets, ledger)
        return without_loops(parts, read, ledger.topic)


def start_run(
    session: SparkSession,
    micro_batch: MicroBatch,
    settings: SinkSettings,
    ledger: LedgerStore,
    commit_source_offsets: bool | None,
) -> RunState:
    """Checks what the first batch of a run needs. The fence is the transaction's."""
    check_start(session, ledger.transactional_id, settings, micro_batch)
    with while_reaching(settings.client):
        ledger.prepare()
        sources = use_sources(commit_source_offsets, micro_batch, settings.client)
    return RunState(
        micro_batch,
        DriverProducer(ledger.transactional_id, settings),
        sources,
        sources.read != NO_TOPICS or not sources.are_known,
        RowWriter(settings, by_permit=not allows_barrier(session)),
    )


def record_damage(
    calls: RunCalls,
    micro_batch: MicroBatch,
    run: RunState | None,
    settings: SinkSettings,
    ledger: LedgerStore,
) -> None:
    """Records in the ledger what a restart must know. The caller gets its refusal anyway."""
    damage = calls.pop_damage()
    if damage is None:
        return
    try:
        if run is None or run.micro_batch.run != micro_batch.run:
            producer = DriverProducer(ledger.transactional_id, settings)
            ledger.prepare()
            producer.fence()
            view = ledger.read(producer)
        else:
            producer, view = run.producer, run.view
        damaged = with_damage(view.entry, micro_batch.query_id, damage.short, damage.lost)
        if damaged is not None:
            producer.freshen()
            write_entry(ledger, producer.lend(), damaged, view)
            producer.commit()
    except FencepostError as problem:
        log.warning(
            "batch %d: the refused call could not be recorded in the ledger: %s",
            micro_batch.batch_id,
            problem,
        )

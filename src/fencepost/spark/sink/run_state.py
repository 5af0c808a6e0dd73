"""What the sink keeps while a query runs: the state of the run, and one call's request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fencepost.spark.sink.batch.micro_batch import MicroBatch
    from fencepost.spark.sink.batch.origins import SourceUse
    from fencepost.spark.sink.batch.parts import Part
    from fencepost.spark.sink.calls import RunCalls
    from fencepost.spark.sink.jobs.counts import JobCounter
    from fencepost.spark.sink.ledger.decision import Batch
    from fencepost.spark.sink.ledger.entry import LedgerView
    from fencepost.spark.sink.limits import TopicLimits
    from fencepost.spark.sink.producer import DriverProducer
    from fencepost.spark.transport.accounts import Account
    from fencepost.spark.transport.collected import RowCollector

MAX_DIRECT_FAILURES: Final = 3
"""After this many batches in a row whose direct exchange failed, a run uses the shuffle only: its
executors cannot reach each other, and finding that out takes half a minute each time."""


@dataclass(slots=True)
class RunState:
    """What the driver keeps between two batches of one run of a query."""

    micro_batch: MicroBatch
    """The current batch of this run, or the last one."""
    producer: DriverProducer
    view: LedgerView
    limits: TopicLimits
    sources: SourceUse
    jobs: JobCounter
    is_stateful: bool | None = None
    by_permit: bool = False
    """Whether Spark refuses barrier stages, so that tasks need permits."""
    with_times: bool = False
    """Whether the times of rows are written."""
    collectors: dict[str, RowCollector] = field(default_factory=dict)
    """The collectors of small batches, by part."""
    direct_failures: int = 0
    """Batches in a row whose first attempt failed."""

    @property
    def may_write_directly(self) -> bool:
        """Whether this run still exchanges batches from task to task."""
        return self.direct_failures < MAX_DIRECT_FAILURES

    def remember_direct(self, *, failed: bool) -> None:
        """Counts batches in a row whose first attempt failed."""
        if failed:
            self.direct_failures += 1
        elif self.may_write_directly:
            self.direct_failures = 0

    def remember_size(self, part: Part, account: Account) -> None:
        """Adapts the collector's limit to the size of the last batch."""
        from fencepost.spark.transport.collected import collect_limit_after

        self.collector_of(part).limit = collect_limit_after(account)

    def collector_of(self, part: Part) -> RowCollector:
        """The collector of a part, created on first use."""
        from fencepost.spark.transport.collected import RowCollector

        if part.name not in self.collectors:
            self.collectors[part.name] = RowCollector(part.topic, with_times=self.with_times)
        return self.collectors[part.name]


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """One call of the sink: a batch and the DataFrames to write."""

    micro_batch: MicroBatch
    parts: tuple[Part, ...]
    """The parts to write."""
    all_names: tuple[str, ...]
    """The names of all parts of the batch, including those already committed."""
    calls: RunCalls
    is_again: bool = False
    """Whether this run may have written the batch itself."""

    @property
    def batch_id(self) -> int:
        """Spark's id of the batch."""
        return self.micro_batch.batch_id

    def as_batch(self) -> Batch:
        """The batch as the ledger compares it."""
        run_id = "" if self.is_again else self.micro_batch.run_id
        return replace(self.micro_batch.as_batch(), parts=self.all_names, run_id=run_id)

    def only(self, missing: tuple[str, ...]) -> WriteRequest:
        """The same request with these parts only; with all of them if none are named."""
        parts = tuple(part for part in self.parts if part.name in missing or not missing)
        return replace(self, parts=parts)

"""The metadata log, as its only writer uses it.

`take` appends the records of a decision as one batch, and the followers apply them in the same
turn. An append that fails is not applied. `finish` continues when everything appended so far is
durable; `commit_now` waits for that in place, at a start. In `os` mode the log is synced soon after
an append, too: without the metadata log no other log can be found.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.broker.controller.checkpoint import METADATA_LOG_CONFIG, MetadataCheckpoints
from fencepost.broker.controller.log_check import refuse_damaged_metadata
from fencepost.coordinator.metadata.events import Decision, refuse
from fencepost.records.metadata_log import encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost.broker.controller.followers import Followers
    from fencepost.broker.runtime import Runtime
    from fencepost.broker.storage.background import Background, Flusher
    from fencepost.broker.storage.layout import Layout
    from fencepost.broker.storage.partition_store import PartitionStore
    from fencepost.coordinator.metadata.effects import Effect
    from fencepost.partition.partition import Partition

    Taken = tuple[Decision, Sequence[Effect]]
    """A decision that is in the log, with its effects; or a refusal without any."""

log = logging.getLogger(__name__)


class MetadataLog:
    """The log of one cluster."""

    def __init__(
        self,
        runtime: Runtime,
        layout: Layout,
        store: PartitionStore,
        background: Background,
        flusher: Flusher,
        followers: Followers,
    ) -> None:
        self._runtime = runtime
        self._layout = layout
        self._store = store
        self._background = background
        self._flusher = flusher
        self._followers = followers
        self._checkpoints: Final = MetadataCheckpoints(runtime.disk, layout.folder)
        self._opened: Partition | None = None

    @property
    def partition(self) -> Partition:
        """The open log."""
        assert self._opened is not None, "the metadata log is loaded first"
        return self._opened

    def load(self) -> None:
        """Checks the log, opens it, and folds it into the state of the followers."""
        refuse_damaged_metadata(self._runtime.disk, self._layout)
        self._opened = self._store.open_metadata_log()
        self._opened.reconfigure(METADATA_LOG_CONFIG)
        self._checkpoints.load(self._followers.state, self._opened)

    def append(self, decision: Decision, values: Sequence[bytes] | None = None) -> Taken:
        """Appends and applies a decision; returns a refusal if the log cannot be written.

        `values` are its encoded records, if the caller has them.
        """
        if not decision.records:
            return decision, ()
        if values is None:
            values = [encode_record(record) for record in decision.records]
        try:
            self.partition.append_records(
                [(None, value) for value in values], self._runtime.clock.now_ms()
            )
        except StorageError as problem:
            log.error("cannot write the metadata log: %s", problem)
            refused = refuse(ErrorCode.KAFKA_STORAGE_ERROR, "The metadata log cannot be written.")
            return refused, ()
        self._flusher.written(self.partition)
        effects = self._followers.apply(decision.records)
        self._shorten()
        return decision, effects

    def replace_by_checkpoint(self) -> None:
        """Replaces the log by a checkpoint now, however short it is."""
        self._checkpoints.make_due()
        self._shorten()

    def _shorten(self) -> None:
        """Replaces a long history by a checkpoint, in a thread."""
        checkpoint = self._checkpoints.prepare_if_due(
            self._followers.state, self.partition, self._runtime.clock.now_ms()
        )
        if checkpoint is not None:
            done = partial(self._checkpoints.complete, checkpoint, self.partition)
            self._background.run(checkpoint.run, done)

    def commit_now(self, decision: Decision) -> Sequence[Effect]:
        """Commits a decision during the start; returns its effects when its records are durable.

        That is so in both modes: a metadata log that is missing later was lost, not unwritten.
        """
        taken, effects = self.append(decision)
        if taken.error is not ErrorCode.NONE:
            raise StorageError(taken.message)
        self.partition.advance_high_watermark(self.partition.log.sync())
        return effects

    def finish(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Carries out the effects once everything appended so far is durable, then calls `done`."""
        self.when_durable(partial(self._followers.carry_out, effects, done))

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Calls back once everything appended so far is durable."""
        self._runtime.when_durable(self.partition, self.partition.log_end_offset, callback)

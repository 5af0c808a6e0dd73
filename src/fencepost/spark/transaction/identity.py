"""The driver's producer: the identity a query writes with, from the fence to each EndTxn.

An identity (producer id and epoch) serves one attempt to write one batch. It is *fresh* until it is
lent to the writers of an attempt, and every attempt needs a fresh one:

    fence -> fresh -> lend -> commit    fresh again with transaction version 2, whose EndTxn returns
                        |               the next epoch; with version 1 `freshen` requests it, and
                        |               fails if another producer has taken over
                        +---> abandon   an abort: fresh again, unless the coordinator does not
                                        answer; then only a new fence can tell

A fenced producer raises an error and stops. It does not fence its successor.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.client.failures import ProducerFenced, Refused
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import SinkFailed, SinkFenced, SinkRefused

if TYPE_CHECKING:
    from fencepost.client.admin import TransactionView
    from fencepost.client.blocking import Cluster
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.settings import SinkSettings

log = logging.getLogger(__name__)


_ABORTED: Final = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
"""States of a transactional id whose last transaction is aborted."""

_ENDING: Final = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which the outcome is decided and the markers are not all written."""

_NOTHING_VISIBLE: Final = "Nothing of this batch is visible"


class DriverProducer:
    """Owns one transactional id on behalf of this driver, from `fence` on."""

    def __init__(self, transactional_id: str, settings: SinkSettings) -> None:
        self._transactional_id = transactional_id
        self._settings = settings
        self._identity: ProducerIdentity | None = None
        self.is_fresh = False
        """Whether nothing was written with this identity yet."""

    def __repr__(self) -> str:
        state = "fresh" if self.is_fresh else "used"
        return f"<producer {self._identity or self._transactional_id}, {state}>"

    @property
    def has_identity(self) -> bool:
        """Whether this producer has fenced its predecessors."""
        return self._identity is not None

    @property
    def identity(self) -> ProducerIdentity:
        """The current producer id and epoch."""
        assert self._identity is not None, "fence first"
        return self._identity

    @property
    def _cluster(self) -> Cluster:
        return cluster_of(self._settings.client)

    def fence(self) -> None:
        """Gets a fresh epoch: ends the id's open transaction, and fences every other writer."""
        self._identity = self._init()
        self.is_fresh = True

    def resume(self, identity: ProducerIdentity) -> None:
        """Continues a transaction that another process of this driver has begun, to end it."""
        self._identity = identity
        self.is_fresh = False

    def freshen(self) -> bool:
        """Requests the next epoch, which version 1 does not return. False if already fresh."""
        if self.is_fresh:
            return False
        old = self.identity
        try:
            self._identity = self._cluster.init_producer_id(
                self._transactional_id,
                self._settings.transaction_timeout_ms,
                old.producer_id,
                old.producer_epoch,
            )
        except ProducerFenced as problem:
            raise self.fenced() from problem
        self.is_fresh = True
        return True

    def lend(self) -> ProducerIdentity:
        """The identity, for the writers of one attempt."""
        assert self.is_fresh
        self.is_fresh = False
        return self.identity

    def commit(self) -> None:
        """Commits; UnknownOutcome if the answer is lost, SinkRefused if this producer is fenced."""
        try:
            following = self._cluster.end_txn(self.identity, commit=True)
        except ProducerFenced as problem:
            raise self.fenced() from problem
        except Refused as problem:
            # With version 2 the coordinator treats a commit after a timeout as a retry of the
            # abort.
            if problem.code != ErrorCode.INVALID_TXN_STATE:
                raise
            raise self.fenced() from problem
        self.is_fresh = following != self.identity
        self._identity = following

    def abandon(self) -> bool:
        """Aborts a failed attempt: its records never become visible, its executors are fenced.

        False if the coordinator does not say so.
        """
        try:
            self._identity = self._abort()
        except ProducerFenced as problem:
            raise self.fenced() from problem
        except FencepostError as problem:
            log.warning("%r: the abort failed: %s", self, problem)
            return False
        self.is_fresh = True
        return True

    def _described(self) -> TransactionView | None:
        """The coordinator's view of the id."""
        name = self._transactional_id
        return self._cluster.describe_transactions([name])[name]

    def is_owner(self) -> bool:
        """Whether no other producer has fenced this one. Only valid before it has written."""
        mine, view = self.identity, self._described()
        return view is not None and (view.producer_id, view.producer_epoch) == (
            mine.producer_id,
            mine.producer_epoch,
        )

    def is_taken(self) -> bool:
        """Whether another producer has the id. The end of our transaction adds one to the epoch."""
        mine, view = self.identity, self._described()
        return view is not None and (
            view.producer_id != mine.producer_id or view.producer_epoch > mine.producer_epoch + 1
        )

    def has_timed_out(self) -> bool:
        """Whether the brokers aborted the transaction by timeout, which adds one to the epoch."""
        mine = self.identity
        try:
            view = self._described()
        except FencepostError as problem:
            log.info("%r: the state of its transaction is not known: %s", self, problem)
            return False
        return (
            view is not None
            and view.state in _ABORTED
            and view.producer_id == mine.producer_id
            and view.producer_epoch == mine.producer_epoch + 1
        )

    def was_committed(self) -> bool:
        """Whether the last transaction was committed, by the coordinator's state of the id.

        For a write that no ledger records: this is its only witness.
        """
        mine = self.identity
        deadline = time.monotonic() + self._settings.client.default_api_timeout_ms / 1_000
        while True:
            view = self._described()
            # The end of our own transaction adds one to the epoch.
            is_ours = (
                view is not None
                and view.producer_id == mine.producer_id
                and view.producer_epoch <= mine.producer_epoch + 1
            )
            if view is None or not is_ours or time.monotonic() >= deadline:
                raise SinkFailed(
                    "the answer to EndTxn was lost, and the cluster no longer says whether "
                    "the rows are visible: look at the end of the topics before you repeat the "
                    "write. With txnAppId and txnVersion the ledger would tell"
                )
            if view.state not in _ENDING:
                return view.state == "CompleteCommit"
            time.sleep(0.05)

    def fenced(self, outcome: str = _NOTHING_VISIBLE) -> SinkRefused:
        """The error for a producer that has lost its id or its transaction."""
        if outcome is _NOTHING_VISIBLE and self.has_timed_out():
            return self.timed_out()
        return SinkFenced(
            f"the transactional_id {self._transactional_id!r} was taken over by another query, or "
            "the transaction was open for longer than kafka.transaction.timeout.ms "
            f"({self._settings.transaction_timeout_ms}) and was aborted. {outcome}. If two "
            "queries use the id, give one of them its own; raise the timeout if batches take "
            "longer; then start the query again, and it continues from its checkpoint"
        )

    def timed_out(self) -> SinkRefused:
        """The error for a transaction that the brokers have aborted by timeout."""
        return SinkRefused(
            f"the transaction of {self._transactional_id!r} was open for longer than "
            f"kafka.transaction.timeout.ms ({self._settings.transaction_timeout_ms}), and the "
            "brokers aborted it. Nothing of this batch is visible. Raise the timeout, or make "
            "batches smaller; then start the query again, and it repeats the batch"
        )

    def _init(self) -> ProducerIdentity:
        timeout_ms = self._settings.transaction_timeout_ms
        try:
            return self._cluster.init_producer_id(self._transactional_id, timeout_ms)
        except Refused as problem:
            if problem.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise SinkRefused(
                f"the brokers do not allow a transaction timeout of {timeout_ms} ms: lower "
                "kafka.transaction.timeout.ms of the sink, or raise transaction.max.timeout.ms "
                "of the brokers"
            ) from problem

    def _abort(self) -> ProducerIdentity:
        """Aborts, and returns the identity for the next attempt."""
        mine = self.identity
        try:
            following = self._cluster.end_txn(mine, commit=False)
        except Refused as problem:
            if problem.code != ErrorCode.INVALID_TXN_STATE:
                raise
            following = mine  # Nothing was open: the batch failed before its first write.
        # Version 1 keeps the epoch, and an executor that still runs could begin another transaction
        # with it. The abort was accepted, so the id is still ours, and this fence affects only our
        # own writers.
        return self._init() if following == mine else following

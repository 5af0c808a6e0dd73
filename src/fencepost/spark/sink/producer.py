"""The driver's producer: under which identity a query writes, from the fence to the end of each transaction.

An identity (producer id and epoch) is good for one attempt to write one batch. It is *fresh* until
somebody may have written with it, and a fresh one is there before every attempt:

    fence -> fresh -> lend -> commit    fresh again with transaction version 2, whose EndTxn brings the next epoch;
                        |               with version 1 `freshen` asks for it, and is refused if somebody else has
                        |               taken over
                        +---> abandon   an abort: fresh again; or doubtful, when nobody answers and we do not know
                                        whether the transaction is over. Only a new fence can tell

Whoever is fenced says so and stops. It does not fence back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.client.failures import ProducerFenced, Refused
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import SinkFenced, SinkRefused

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.sink.settings import SinkSettings

log = logging.getLogger(__name__)


_ABORTED: Final = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
"""States of a transactional id whose last transaction is aborted."""

_NOTHING_VISIBLE: Final = "Nothing of this batch is visible"


class DriverProducer:
    """One transactional id in the hands of this driver.

    It is made by fencing whoever had the id before.
    """

    def __init__(self, transactional_id: str, settings: SinkSettings) -> None:
        self._transactional_id = transactional_id
        self._settings = settings
        self.identity: ProducerIdentity = self._init()
        self.is_fresh = True
        """Whether nobody has written with this identity yet."""
        self.is_doubtful = False
        """Whether we do not know if our last transaction is over."""

    def __repr__(self) -> str:
        state = "fresh" if self.is_fresh else "doubtful" if self.is_doubtful else "used"
        return f"<producer {self.identity}, {state}>"

    @property
    def _cluster(self) -> Cluster:
        return cluster_of(self._settings.client)

    def fence(self) -> None:
        """A fresh epoch: what is open under the id is ended, and whoever writes with it is locked out."""
        self.identity = self._init()
        self.is_fresh, self.is_doubtful = True, False

    def freshen(self) -> bool:
        """Transaction version 1 keeps its epoch: asks for the next one.

        False when there was no need to.
        """
        if self.is_fresh:
            return False
        old = self.identity
        try:
            self.identity = self._cluster.init_producer_id(
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
        """The identity for those who write the rows of an attempt."""
        assert self.is_fresh
        assert not self.is_doubtful
        self.is_fresh = False
        return self.identity

    def commit(self) -> None:
        """Ends the transaction: UnknownOutcome when the answer is lost, SinkRefused when we are fenced."""
        try:
            following = self._cluster.end_txn(self.identity, commit=True)
        except ProducerFenced as problem:
            raise self.fenced() from problem
        except Refused as problem:
            # With version 2 the coordinator takes it for a repetition of the abort by which the
            # timeout ended it.
            if problem.code != ErrorCode.INVALID_TXN_STATE:
                raise
            raise self.fenced() from problem
        self.is_fresh = following != self.identity
        self.identity = following

    def abandon(self) -> None:
        """Aborts a failed attempt, so that its records never count and its executors are locked out."""
        try:
            self.identity = self._abort()
            self.is_fresh = True
        except ProducerFenced as problem:
            raise self.fenced() from problem
        except FencepostError as problem:
            log.warning("%r: the abort failed: %s", self, problem)
            self.is_doubtful = True

    def is_owner(self) -> bool:
        """Whether nobody has fenced us since our own fence: to be asked before anything is written."""
        mine = self.identity
        view = self._cluster.describe_transactions([self._transactional_id])[self._transactional_id]
        return view is not None and (view.producer_id, view.producer_epoch) == (
            mine.producer_id,
            mine.producer_epoch,
        )

    def is_taken(self) -> bool:
        """Whether somebody else has the id now: the end of our own transaction raises the epoch by one at most."""
        mine = self.identity
        views = self._cluster.describe_transactions([self._transactional_id])
        view = views[self._transactional_id]
        return view is not None and (
            view.producer_id != mine.producer_id or view.producer_epoch > mine.producer_epoch + 1
        )

    def has_timed_out(self) -> bool:
        """Whether the brokers have aborted our transaction by themselves: that raises the epoch by one, and nobody has it."""
        mine = self.identity
        try:
            views = self._cluster.describe_transactions([self._transactional_id])
        except FencepostError as problem:
            log.info("%r: what became of it is not known: %s", self, problem)
            return False
        view = views[self._transactional_id]
        return (
            view is not None
            and view.state in _ABORTED
            and view.producer_id == mine.producer_id
            and view.producer_epoch == mine.producer_epoch + 1
        )

    def fenced(self, outcome: str = _NOTHING_VISIBLE) -> SinkRefused:
        """What to say when the id, or the transaction, is not ours any more."""
        if outcome is _NOTHING_VISIBLE and self.has_timed_out():
            return self.timed_out()
        return SinkFenced(
            f"the transactional_id {self._transactional_id!r} was taken over by another query, "
            "or the transaction was "
            "open for longer than kafka.transaction.timeout.ms "
            f"({self._settings.transaction_timeout_ms}) and was "
            f"aborted. {outcome}. Give every query its own transactional_id; raise the timeout "
            "if batches take longer; then start the query again, and it goes on from its checkpoint"
        )

    def timed_out(self) -> SinkRefused:
        """What to say when the brokers have aborted the transaction by themselves."""
        return SinkRefused(
            f"the transaction of {self._transactional_id!r} was open for longer than "
            "kafka.transaction.timeout.ms "
            f"({self._settings.transaction_timeout_ms}), and the brokers aborted it. Nothing of "
            "this batch is visible. Raise "
            "the timeout, or make batches smaller; then start the query again, and it repeats "
            "the batch"
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
        """The identity for the next attempt."""
        mine = self.identity
        try:
            following = self._cluster.end_txn(mine, commit=False)
        except Refused as problem:
            if problem.code != ErrorCode.INVALID_TXN_STATE:
                raise
            following = mine  # Nothing was open: the batch failed before its first write.
        # Version 1 keeps the epoch, and an executor that still runs could begin another transaction
        # with it. Nobody has taken the id from us, or the abort would have been refused: the fence
        # meets only our own.
        return self._init() if following == mine else following

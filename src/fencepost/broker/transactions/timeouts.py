"""Aborts transactions that exceed their timeout, and removes transactional ids that expire.

Both scans take several turns of the loop if they find much: ten thousand transactions may time out
in the same second.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import MAX_BATCH_BYTES
from fencepost.broker.transactions.journal import BY_RESTART, BY_TIMEOUT, Origin
from fencepost.broker.turns import run_in_turns
from fencepost.coordinator.txn.decide import decide_expiration
from fencepost.coordinator.txn.events import ExpirationDue, Reply, TimedOut
from fencepost.coordinator.txn.prepare import decide_timeout, timed_out_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencepost.broker.runtime import Runtime, TimerHandle
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.transactions.coordinator import TransactionCoordinator
    from fencepost.broker.transactions.partition import CoordinatorPartition

log = logging.getLogger(__name__)

MAX_TOMBSTONES_BYTES: Final = MAX_BATCH_BYTES // 2
"""Of one batch of tombstones: Kafka expired nothing once a batch grew too large (KAFKA-13099)."""

FOREVER_MS: Final = 2**62
"""Later than any timeout."""


class OpenTransaction:
    """A transaction to abort in a later turn, unless it has ended by then."""

    __slots__ = ("coordinator", "producer_id", "start_ms", "transactional_id")

    def __init__(self, coordinator: CoordinatorPartition, transactional_id: str) -> None:
        txn = coordinator.state.transactions[transactional_id]
        self.coordinator = coordinator
        self.transactional_id = transactional_id
        self.producer_id = txn.producer_id
        self.start_ms = txn.start_ms

    def is_still_open(self) -> bool:
        """Whether it is still the same transaction: its producer may have begun the next one."""
        txn = self.coordinator.state.transactions.get(self.transactional_id)
        return not self.coordinator.closed and txn is not None and txn.start_ms == self.start_ms


class TransactionClock:
    """The two periodic scans."""

    def __init__(
        self, runtime: Runtime, config: BrokerConfig, transactions: TransactionCoordinator
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._transactions = transactions
        self._timers: dict[str, TimerHandle] = {}

    def start(self) -> None:
        """Starts the scans; a second call changes nothing."""
        if self._timers:
            return
        config = self._config
        self._every(
            "timeouts",
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            self.abort_timed_out,
        )
        self._every(
            "expiration",
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
            self.remove_expired,
        )

    def stop(self) -> None:
        """Stops the scans."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _every(self, name: str, pause_ms: int, scan: Callable[[], None]) -> None:
        def again() -> None:
            self._timers[name] = self._runtime.call_later(pause_ms, again)
            scan()

        self._timers[name] = self._runtime.call_later(pause_ms, again)

    def earliest_timeout_ms(self) -> int | None:
        """When the first open transaction times out, for a clock that jumps; None if none will."""
        due = []
        for coordinator in self._transactions.coordinators():
            state = coordinator.state
            for transactional_id, _ in timed_out_ids(state, coordinator.pending, FOREVER_MS):
                txn = state.transactions[transactional_id]
                due.append(txn.start_ms + txn.timeout_ms + 1)
        return min(due, default=None)

    # -- transaction.timeout.ms -------------------------------------------------------------------

    def abort_timed_out(self) -> None:
        """Aborts every transaction past its timeout, and fences its producer."""
        now_ms = self._runtime.clock.now_ms()
        late = [
            OpenTransaction(coordinator, transactional_id)
            for coordinator in self._transactions.coordinators()
            for transactional_id, _ in timed_out_ids(coordinator.state, coordinator.pending, now_ms)
        ]
        self._abort(late, BY_TIMEOUT)

    def _abort(self, found: list[OpenTransaction], origin: Origin) -> None:
        run_in_turns(self._runtime, self._abort_steps(found, origin), lambda: None)

    def _abort_steps(self, found: list[OpenTransaction], origin: Origin) -> Iterator[None]:
        for each in found:
            if each.is_still_open():
                self.abort(each.transactional_id, each.producer_id, origin)
                yield

    def abort(self, transactional_id: str, producer_id: int, origin: Origin) -> None:
        """Aborts one open transaction by decision of the coordinator."""

        def ended(reply: Reply) -> None:
            if reply.error is not ErrorCode.NONE:
                log.debug(
                    "transactional id %s: not aborted: %s", transactional_id, reply.error.name
                )

        event = TimedOut(transactional_id, producer_id, self._transactions.transaction_version)
        self._transactions.submit(decide_timeout, event, ended, origin)

    def abort_all(self, coordinator: CoordinatorPartition) -> None:
        """Aborts what a load found open (transaction.recovery.ongoing=abort)."""
        found = [
            OpenTransaction(coordinator, each)
            for each in coordinator.state.open
            if each not in coordinator.pending
        ]
        self._abort(found, BY_RESTART)

    # -- transactional.id.expiration.ms -----------------------------------------------------------

    def remove_expired(self) -> None:
        """Writes tombstones for expired ids, one partition per turn of the loop."""
        for coordinator in self._transactions.coordinators():
            self._runtime.call_later(0, partial(self.expire, coordinator))

    def expire_all(self) -> None:
        """The same in one turn, for a clock that jumps."""
        for coordinator in self._transactions.coordinators():
            self.expire(coordinator)

    def expire(self, coordinator: CoordinatorPartition) -> None:
        """Removes the expired ids of one partition."""
        event = ExpirationDue(self._config.transactional_id_expiration_ms, MAX_TOMBSTONES_BYTES)
        while not coordinator.closed:
            decision = decide_expiration(
                coordinator.state, coordinator.pending, event, self._runtime.clock.now_ms()
            )
            if not decision.records or not coordinator.append_tombstones(decision.records):
                return
            log.info(
                "%s: %d transactional ids have expired",
                coordinator.partition.name,
                len(decision.records),
            )

"""Reads the services of a broker and writes Prometheus' text, without stalling the loop.

A broker may lead 20,000 partitions and coordinate 100,000 transactional ids. To count them at the
scrape costs nothing in between, but takes tens of milliseconds, so the collector works for
one short turn at a time and lets the loop serve requests in between. Whatever is deleted before it
finishes is still counted once; a total is exact for a broker at rest.

The text is written by prometheus-client, one metric at a time, for the same reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from fencepost.base.errors import ErrorCode, error_name
from fencepost.base.ids import CLUSTER_METADATA_TOPIC
from fencepost.broker.metrics import catalogue
from fencepost.broker.metrics.catalogue import Metric, Type
from fencepost.broker.metrics.counters import Cause, Histogram
from fencepost.broker.metrics.pins import LATE_MS, Pin, PinWatch
from fencepost.broker.turns import Turn
from fencepost.coordinator.group.lifecycle import State as GroupState
from fencepost.coordinator.txn.states import State
from fencepost.wire.apis import API

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from fencepost.broker.core import BrokerCore
    from fencepost.broker.metrics.stalls import StallWatch
    from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
    from fencepost.partition.partition import Partition

    Sample = tuple[tuple[str, ...], float]
    """The values of the labels, and the value."""

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

ITEMS_PER_LOOK: Final = 100
"""Partitions or transactional ids that are read between two looks at the time."""

MAX_PINNED_SERIES: Final = 20
"""Pinned partitions that get their own series: those that have been pinned the longest."""

SHOWN_STATES: Final = tuple(
    state for state in State if state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)
)
"""The states that a transactional id can be in; the others are never written."""

_TITLES: Final = {state: state.name.title().replace("_", "") for state in SHOWN_STATES}
_ABORT_REASONS: Final = {cause: cause.name.lower() for cause in Cause}
_FENCE_REASONS: Final = {
    cause: cause.name.lower()
    for cause in (Cause.NEWER_INSTANCE, Cause.TIMEOUT, Cause.RESTART, Cause.ADMINISTRATOR)
}


class Transactions(NamedTuple):
    """What the coordinators hold."""

    by_state: Counter[int]
    open: int
    oldest_ms: int
    late: int
    began_ms: dict[int, int]
    """When the open transaction of each producer began."""


class Partitions(NamedTuple):
    """What the partitions hold."""

    led: int
    log_bytes: int
    producer_ids: int
    pins: list[Pin]


class Collector:
    """The metrics of one broker."""

    def __init__(self, broker: BrokerCore, stalls: StallWatch) -> None:
        self._broker = broker
        self._stalls = stalls
        self._pins = PinWatch()
        self._process = ProcessCollector(registry=None)
        self._last_seconds = 0.0
        self._turn = Turn(is_short=True)

    async def collect(self) -> bytes:
        """All metrics as text; takes several turns of the loop."""
        started_at = perf_counter()
        self._turn = Turn(is_short=True)
        transactions = await self._transactions()
        partitions = await self._partitions(transactions.began_ms)
        groups = await self._groups()
        parts: list[bytes] = []
        for family in self._families(transactions, partitions, groups):
            parts.append(generate_latest(registry_of(family)))
            await self._pause()
        parts.append(generate_latest(self._process))
        self._last_seconds = perf_counter() - started_at
        return b"".join(parts)

    async def _pause(self) -> None:
        if self._turn.is_over():
            await asyncio.sleep(0)
            self._turn = Turn(is_short=True)

    # -- what takes time --------------------------------------------------------------------------

    async def _transactions(self) -> Transactions:
        broker = self._broker
        now_ms = broker.runtime.clock.now_ms()
        late_from_ms = now_ms - broker.config.transaction_max_timeout_ms - LATE_MS
        by_state: Counter[int] = Counter()
        began_ms: dict[int, int] = {}
        late, oldest_ms, opened = 0, now_ms, 0
        for coordinator in broker.transactions.coordinators():
            known = list(coordinator.state.transactions.values())
            for first in range(0, len(known), ITEMS_PER_LOOK):
                for txn in known[first : first + ITEMS_PER_LOOK]:
                    by_state[txn.state] += 1
                    if txn.state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT):
                        opened += 1
                        began_ms[txn.producer_id] = txn.start_ms
                        oldest_ms = min(oldest_ms, txn.start_ms)
                        late += txn.start_ms < late_from_ms
                await self._pause()
        return Transactions(by_state, opened, now_ms - oldest_ms, late, began_ms)

    async def _partitions(self, began_ms: dict[int, int]) -> Partitions:
        broker = self._broker
        now_ms = broker.runtime.clock.now_ms()
        max_timeout_ms = broker.config.transaction_max_timeout_ms
        led, log_bytes, producer_ids = 0, 0, 0
        pins: list[Pin] = []
        self._pins.begin()
        known: list[Partition] = list(broker.partitions.by_name.values())
        for first in range(0, len(known), ITEMS_PER_LOOK):
            for partition in known[first : first + ITEMS_PER_LOOK]:
                if partition.closed or partition.name.topic == CLUSTER_METADATA_TOPIC:
                    continue
                led += 1
                log_bytes += partition.log.size_bytes
                producer_ids += len(partition.producers)
                pin = self._pins.look(partition, began_ms, now_ms, max_timeout_ms)
                if pin is not None:
                    pins.append(pin)
            await self._pause()
        return Partitions(led, log_bytes, producer_ids, pins)

    async def _groups(self) -> Counter[str]:
        states: list[GroupCoordinatorState] | ErrorCode = self._broker.groups.states()
        by_state: Counter[str] = Counter()
        if isinstance(states, list):
            for state in states:
                by_state.update(group.state.value for group in list(state.groups.values()))
                await self._pause()
        return by_state

    # -- the metrics ------------------------------------------------------------------------------

    def _families(
        self, transactions: Transactions, partitions: Partitions, groups: Counter[str]
    ) -> Iterator[Family]:
        yield from self._of_transactions(transactions)
        yield from self._of_partitions(partitions)
        yield from self._of_requests()
        yield family_of(
            catalogue.GROUPS, [((state.value,), groups[state.value]) for state in GroupState]
        )
        yield from self._of_process()

    def _of_transactions(self, found: Transactions) -> Iterator[Family]:
        coordinator = self._broker.transactions
        counters = coordinator.journal.counters
        by_state = [((_TITLES[state],), found.by_state[state]) for state in SHOWN_STATES]
        yield family_of(catalogue.TRANSACTIONS, by_state)
        yield _one(catalogue.STARTED, counters.started)
        yield _one(catalogue.COMMITTED, counters.committed)
        by_administrator = counters.committed_by_administrator
        yield _one(catalogue.COMMITTED_BY_ADMINISTRATOR, by_administrator)
        aborted = [((reason,), counters.aborted[each]) for each, reason in _ABORT_REASONS.items()]
        yield family_of(catalogue.ABORTED, aborted)
        yield _histogram(catalogue.COMMIT_SECONDS, [((), counters.commit_seconds)])
        yield _histogram(catalogue.LIFETIME_SECONDS, [((), counters.lifetime_seconds)])
        yield _one(catalogue.OPEN, found.open)
        yield _one(catalogue.OLDEST_OPEN, found.oldest_ms / 1000)
        yield _one(catalogue.LATE, found.late)
        fenced = [((reason,), counters.fenced[each]) for each, reason in _FENCE_REASONS.items()]
        yield family_of(catalogue.FENCED, fenced)
        yield _one(catalogue.MARKERS_BY_REQUEST, counters.markers_by_request)
        yield _histogram(catalogue.VERIFICATION_SECONDS, [((), counters.verification_seconds)])
        yield _one(catalogue.UNVERIFIED, counters.unverified)
        endings = sum(len(each.endings) for each in coordinator.coordinators())
        yield _one(catalogue.MARKERS_WAITING, endings)

    def _of_partitions(self, found: Partitions) -> Iterator[Family]:
        pins = sorted(found.pins, key=lambda pin: (-pin.age_ms, -pin.lag, pin.name))
        yield _one(catalogue.PARTITIONS, found.led)
        yield _one(catalogue.PARTITIONS_OFFLINE, len(self._broker.partitions.offline))
        yield _one(catalogue.PARTITIONS_LATE, sum(pin.is_late for pin in pins))
        yield _one(catalogue.PINNED, len(pins))
        yield _one(catalogue.LSO_LAG_MAX, max((pin.lag for pin in pins), default=0))
        yield _one(catalogue.LSO_AGE_MAX, max((pin.age_ms for pin in pins), default=0) / 1000)
        shown = [((pin.name.topic, str(pin.name.partition)), pin) for pin in pins]
        del shown[MAX_PINNED_SERIES:]
        yield family_of(catalogue.LSO_LAG, [(labels, pin.lag) for labels, pin in shown])
        yield family_of(catalogue.LSO_AGE, [(labels, pin.age_ms / 1000) for labels, pin in shown])
        yield _one(catalogue.LOG_BYTES, found.log_bytes)
        yield _one(catalogue.PRODUCER_IDS, found.producer_ids)

    def _of_requests(self) -> Iterator[Family]:
        broker = self._broker
        counters = broker.request_counters
        assert counters is not None, "requests are counted if metrics are served"
        by_api = [((API[api].name,), found) for api, found in sorted(counters.by_api.items())]
        yield _histogram(
            catalogue.REQUEST_SECONDS, [(labels, found.seconds) for labels, found in by_api]
        )
        errors = [
            ((API[api].name, error_name(code)), count)
            for (api, code), count in sorted(counters.errors.items())
        ]
        yield family_of(catalogue.REQUEST_ERRORS, errors)
        received = [(labels, found.received_bytes) for labels, found in by_api]
        yield family_of(catalogue.RECEIVED_BYTES, received)
        yield family_of(
            catalogue.SENT_BYTES, [(labels, found.sent_bytes) for labels, found in by_api]
        )
        yield _one(catalogue.CONNECTIONS, broker.connection_count)
        yield _one(catalogue.ACCEPTED, broker.accepted_count)
        yield _one(catalogue.UNREAD_BYTES, broker.replies.taken_bytes)
        yield _one(catalogue.LARGE_REQUEST_BYTES, broker.requests.taken_bytes)

    def _of_process(self) -> Iterator[Family]:
        broker = self._broker
        recovery = broker.host.store.recovery
        yield family_of(catalogue.BROKER, [((str(broker.config.node_id),), 1)])
        yield _one(catalogue.READY, broker.why_not_ready() is None)
        yield _one(catalogue.STALL, self._stalls.read_longest())
        yield _one(catalogue.RECOVERY_SECONDS, recovery.seconds)
        yield _one(catalogue.RECOVERY_CUT, recovery.cut_bytes)
        loads = sorted(broker.runtime.loads.times.items())
        yield family_of(catalogue.LOAD_SECONDS, [((topic,), each.longest) for topic, each in loads])
        moves = sorted(broker.coordinators.moves.items())
        yield family_of(catalogue.COORDINATOR_MOVES, [((topic,), each) for topic, each in moves])
        yield _one(catalogue.SCRAPE_SECONDS, self._last_seconds)


class _Registry:
    """The registry that prometheus-client wants."""

    def __init__(self, families: tuple[Family, ...]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def registry_of(*families: Family) -> Any:
    """Metrics that `generate_latest` can write."""
    return _Registry(families)


def _one(metric: Metric, value: float) -> Family:
    return family_of(metric, [((), value)])


def family_of(metric: Metric, samples: Iterable[Sample]) -> Family:
    """A counter or a gauge with its samples."""
    make = CounterMetricFamily if metric.type is Type.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family


def _histogram(metric: Metric, found: Iterable[tuple[tuple[str, ...], Histogram]]) -> Family:
    assert metric.type is Type.HISTOGRAM
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, histogram in found:
        count = 0
        buckets: list[tuple[str, float]] = []
        for bound, more in zip((*histogram.bounds, "+Inf"), histogram.buckets, strict=True):
            count += more
            buckets.append((str(bound), count))
        family.add_metric(labels, buckets, histogram.total)
    return family

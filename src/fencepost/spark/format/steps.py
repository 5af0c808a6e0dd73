"""The last step of a routed plan: writes the rows, and passes on its report.

It runs in the barrier stage to which Spark adds the data source's writer. The writer of the same
task hands it the identity of the transaction (`transport/meeting/hand_over.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fencepost.client.failures import ProducerFenced, UnknownTopicOrPartition
from fencepost.spark.connection import cluster_id_of, cluster_of
from fencepost.spark.failures import BatchTooLarge, RowRefused, SinkRefused
from fencepost.spark.format.task import CALL_ROUTE, TaskPlace, explained_counts, find_place
from fencepost.spark.plain_errors import plain_errors
from fencepost.spark.sink.jobs.job import explained_refusals
from fencepost.spark.sink.limits import TopicLimits
from fencepost.spark.sink.producer import DriverProducer
from fencepost.spark.transport.direct import DirectPlan, write_directly
from fencepost.spark.transport.meeting.hand_over import Orders, take_orders
from fencepost.spark.transport.shuffled import DeliveryPlan, deliver

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.format.route import RoutePlan
    from fencepost.spark.sink.settings import SinkSettings
    from fencepost.spark.transport.meeting.stages import StagesAddress

    Write = Callable[[TaskPlace, ProducerIdentity], Iterator[pa.RecordBatch]]

WRITER_SECONDS: Final = 30.0
"""How long a step waits for its writer, which Spark starts at the same time."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the step of a routed DataFrame gets."""

    route: RoutePlan
    token: str
    seconds: float
    """How long to wait for the writer."""


def shuffled_step(plan: StepPlan) -> Any:
    """Delivers the batches that the shuffle has brought to this task."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def write(place: TaskPlace, identity: ProducerIdentity) -> Iterator[pa.RecordBatch]:
            delivery = DeliveryPlan(identity, place.tasks, plan.route.settings.client)
            return deliver(delivery, place.attempt, batches)

        return _write_as_ordered(plan, batches, write)

    return run


def direct_step(plan: StepPlan, stages: StagesAddress, hosts: tuple[str, ...]) -> Any:
    """Packs rows, sends them to the tasks that write them, and delivers its own.

    `hosts`: between which rows may go, as in `sink/jobs/hosts.py`.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def write(place: TaskPlace, identity: ProducerIdentity) -> Iterator[pa.RecordBatch]:
            packing = plan.route.packing(max(0, place.batch_id))
            direct = DirectPlan(packing, identity, stages.meeting(place.stage, hosts))
            return write_directly(direct, place.attempt, place.tasks, batches)

        return _write_as_ordered(plan, batches, write)

    return run


def _write_as_ordered(
    plan: StepPlan, batches: Iterator[pa.RecordBatch], write: Write
) -> Iterator[pa.RecordBatch]:
    place = find_place()
    with plain_errors():
        place.attempt.refuse_second()
        orders = _orders(plan, place)
        if orders.refusal:
            raise SinkRefused(orders.refusal)
        if orders.drains:
            # A stateful query must store its state in any case, so its plan runs.
            for _ in batches:
                pass
            return
        _check_cluster(plan.route.settings, orders.cluster_id)
        with _explained(orders.identity, plan.route.settings):
            yield from write(place, orders.identity)


def _orders(plan: StepPlan, place: TaskPlace) -> Orders:
    try:
        return take_orders(plan.token, place.attempt, plan.seconds)
    except SinkRefused as problem:
        raise SinkRefused(f"{problem}: {CALL_ROUTE}") from None


def _check_cluster(settings: SinkSettings, theirs: str) -> None:
    """SinkRefused if `route` was given another cluster than the format."""
    if not theirs or theirs == cluster_id_of(settings.client):
        return
    # What was known here may be outdated.
    ours = cluster_of(settings.client).describe_cluster().cluster_id
    if ours != theirs:
        raise SinkRefused(
            f"route() was given brokers of cluster {ours}, and the format those of {theirs}: give "
            "both the same kafka.bootstrap.servers. Nothing was written"
        )


@contextmanager
def _explained(identity: ProducerIdentity, settings: SinkSettings) -> Iterator[None]:
    """Says what a user can do about a batch that brokers or counts refuse."""
    try:
        with explained_counts(), explained_refusals():
            yield
    except BatchTooLarge as problem:
        raise _too_large(settings, problem) from problem
    except UnknownTopicOrPartition as problem:
        raise RowRefused(
            f"{problem}: it was deleted while the batch was written. Nothing of the batch was kept"
        ) from problem
    except ProducerFenced as problem:
        producer = DriverProducer(identity.transactional_id or "", settings)
        producer.resume(identity)
        raise producer.fenced() from problem


def _too_large(settings: SinkSettings, problem: BatchTooLarge) -> RowRefused:
    if problem.records <= 1:
        return TopicLimits(settings).refusal(problem)
    return RowRefused(
        f"{problem}, and this route cannot repeat it with smaller ones: pass "
        f"options={{'kafka.batch.size': '{problem.size_bytes // 2}'}} to route(), or raise "
        "max.message.bytes of the topic. Nothing of the batch was kept"
    )

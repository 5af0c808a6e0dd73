"""Brings rows to their writers: the last call on a DataFrame before `format("fencepost")`.

    rows -> pack --repartitionById--> the task that writes this partition -> barrier

Theory of operation. A data source cannot ask Spark for a shuffle, so the DataFrame must arrive
ready: packed into record batches (`transport/packing.py`), each in the task that writes its
partition. The last step passes the batches on unchanged; it is there because it is a barrier step,
and so the stage that Spark adds the write to is a barrier stage: its tasks run once, all at the
same time, and if one fails the job fails. The writer refuses to work in any other stage.

The plan is made once per query and used for every batch. So nothing about the target topic is
fixed in it but the number of writing tasks: every packing task asks for the partition count and the
size limit of the topic itself. Partitions that are added later get rows from the next batch on, by
the same number of tasks.

Order. Rows of one input partition stay in their order. On a batch DataFrame the input partitions
also follow each other in order; a stream cannot be sorted, so there the order between rows of
different input partitions is undefined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError
from fencepost.spark.connection import partition_count
from fencepost.spark.failures import SinkRefused
from fencepost.spark.format.save_modes import explain_modes
from fencepost.spark.format.task import BATCH_ID
from fencepost.spark.sink.job import choose_slots
from fencepost.spark.sink.limits import TopicLimits
from fencepost.spark.sink.settings import SinkSettings, read_settings
from fencepost.spark.sink.workers_python import workers_python
from fencepost.spark.transport.packing import PackingPlan
from fencepost.spark.transport.rows import select_rows
from fencepost.spark.transport.shuffled import PACKED_SCHEMA, pack

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_LOCAL_MASTER: Final = re.compile(r"local\[(\d+)(,\s*\d+)?\]")

MANY: Final = 1_000_000
"""More than any machine has cores."""

_HOW_MANY: Final = (
    "the number of tasks that can run at the same time is not known in a Spark Connect session of "
    "this cluster: pass tasks= to route(), at most the number of its cores"
)


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """What the packing tasks of a routed DataFrame get."""

    settings: SinkSettings
    topic: str | None
    tasks: int

    def packing(self, batch_id: int) -> PackingPlan:
        """The plan of one task for one batch. Asks for the size limit of the topic."""
        client = self.settings.client
        return PackingPlan(
            batch_id=batch_id,
            slots=self.tasks,
            topic=self.topic,
            partition_counts={},
            codec=self.settings.codec,
            batch_bytes=TopicLimits(self.settings).batch_bytes(self.topic),
            max_record_bytes=client.max_request_bytes,
            options=client,
        )


def route(
    df: DataFrame,
    bootstrap_servers: str,
    *,
    topic: str | None = None,
    options: Mapping[str, Any] | None = None,
    tasks: int | None = None,
) -> DataFrame:
    """Prepares a DataFrame for `format("fencepost")`; call it last, and change nothing after it.

    The columns are those of the sink: `value`, and `key`, `topic`, `partition`, `headers` where
    they are needed. `topic`: one topic for all rows. `options`: the `kafka.` options of the sink
    (security, `kafka.compression.type`, `kafka.batch.size`). `tasks`: how many tasks write at the
    same time; by default as many as can run, at most one per partition of `topic`.
    """
    settings = read_settings(bootstrap_servers, options or {})
    if tasks is not None and tasks < 1:
        raise ConfigError(f"tasks must be at least 1, not {tasks}")
    session = df.sparkSession
    rows = select_rows(df, topic)
    if not hasattr(session, "sparkContext") or _is_remote(session):
        return _routed(rows, RoutePlan(settings, topic, tasks or _remote_tasks(session)))
    counts = {} if topic is None else {topic: partition_count(settings.client, topic)}
    plan = RoutePlan(settings, topic, tasks or choose_slots(session, counts))
    with workers_python(session):
        return _routed(rows, plan)


def _is_remote(session: SparkSession) -> bool:
    """Whether this is a Connect session. Its attribute sparkContext exists, and raises."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def _remote_tasks(session: SparkSession) -> int:
    """How many tasks can run at once, from what a Connect session shows."""
    master = (session.conf.get("spark.master", "") or "").strip()
    if master.startswith("local"):
        found = _LOCAL_MASTER.fullmatch(master)
        return int(found[1]) if found else _local_cores(session)
    executors = session.conf.get("spark.executor.instances", None)
    cores = session.conf.get("spark.executor.cores", None)
    if not executors or not cores:
        raise SinkRefused(_HOW_MANY)
    cpus = int(session.conf.get("spark.task.cpus", "1") or 1)
    return max(1, int(executors) * (int(cores) // cpus))


def _local_cores(session: SparkSession) -> int:
    """What `local[*]` means on the server: a range has one partition per core."""
    last = session.range(0, MANY).selectExpr("max(spark_partition_id())").first()
    return 1 if last is None else int(last[0]) + 1


def _routed(rows: DataFrame, plan: RoutePlan) -> DataFrame:
    packed = rows.mapInArrow(_packing_task(plan), PACKED_SCHEMA)
    routed = packed.repartitionById(plan.tasks, "slot")
    if not rows.isStreaming:
        routed = routed.sortWithinPartitions("map_id", "ordinal")
    ended = routed.mapInArrow(_pass_on, PACKED_SCHEMA, barrier=True)
    return ended if rows.isStreaming else explain_modes(ended)


def _packing_task(plan: RoutePlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch_id = int(context.getLocalProperty(BATCH_ID) or 0)
        return pack(plan.packing(batch_id), context.partitionId(), batches)

    return run


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches

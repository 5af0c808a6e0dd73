"""Brings rows to their writers: the last call on a DataFrame before `format("fencepost")`.

    rows -> pack --shuffle--> the task that writes this partition: hop -> the format's writer

Theory of operation. A data source cannot ask Spark for a shuffle, so the DataFrame must arrive
ready: its rows packed into record batches (`ways/packing/`), each in the task that writes its
partition. The last step is a barrier step, and so the stage that Spark adds the data source's
writer to is a barrier stage: its tasks run once, all at the same time, and if one fails the job
fails. The step passes the batches on, and ends with a trailer by which the writer knows that it got
all of them, and nothing else (`trailer.py`).

The plan is made once per query and used for every batch. So of the target topic it fixes only the
number of writing tasks: every packing task requests the topic's partition count and size limit
itself. Partitions that are added later get rows from the next batch on, from the same number of
tasks.

Order. Rows of one input partition stay in their order. The input partitions of a batch DataFrame
also follow each other in order; a stream cannot be sorted, so there the order between rows of
different input partitions is undefined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from fencepost.base.arguments import checked, checked_topic
from fencepost.base.failures import ConfigError
from fencepost.spark.connection import cluster_of, partition_count
from fencepost.spark.doors.checks import check_slots
from fencepost.spark.doors.loops import loop_metadata
from fencepost.spark.doors.trailer import routed_columns, with_trailer
from fencepost.spark.engine.frames import know_columns, spark_columns
from fencepost.spark.engine.hosts import check_secrets
from fencepost.spark.engine.session import activate, is_connect, is_on
from fencepost.spark.engine.versions import is_before_4
from fencepost.spark.engine.workers_python import workers_python
from fencepost.spark.failures import SinkRefused
from fencepost.spark.sentences import plain_errors
from fencepost.spark.settings import SinkSettings, read_settings
from fencepost.spark.ways.limits import TopicLimits
from fencepost.spark.ways.packing.by_record import PackingPlan
from fencepost.spark.ways.packing.rows import select_columns, select_rows
from fencepost.spark.ways.shuffled import PACKED_COLUMNS, pack
from fencepost.spark.ways.stage import bring_to_slots, choose_slots, this_attempt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_LOCAL_MASTER: Final = re.compile(r"local\[(\d+)(,\s*\d+)?\]")

_IN_PIPELINE: Final = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""The condition under which a Connect server refuses to analyse a DataFrame."""

_NO_FLOW: Final = (
    "route() cannot be used in the function of a flow with PySpark {version}: it needs the names "
    "of columns, and Spark does not let a flow ask for them. Use PySpark 4.1 to 4.3"
)

_NO_FORMAT: Final = (
    'route() is for format("fencepost"), which needs Spark 4.1 or newer, and this is Spark '
    "{version}: use df.writeStream.foreachBatch(fencepost.spark.TransactionalSink(...))"
)

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
    is_struct: bool = False
    """Whether all columns of the rows are in one, because they are known only in the tasks."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What the writer must know of the sources (`loops.py`)."""

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


@checked
def route(
    df: DataFrame,
    bootstrap_servers: str,
    *,
    topic: str | None = None,
    options: Mapping[str, Any] | None = None,
    tasks: int | None = None,
    exchange: Literal["auto", "plain"] = "auto",
    write_timestamps: bool = False,
) -> DataFrame:
    """Prepares a DataFrame for `format("fencepost")`; call it last, and change nothing after it.

    The columns are those of the sink: `value`, and `key`, `topic`, `partition`, `headers` where
    they are needed. `topic`: one topic for all rows. `options`: the `kafka.` options of the sink
    (security, `kafka.compression.type`, `kafka.batch.size`). `tasks`: how many tasks write at the
    same time; by default as many as can run, at most one per partition of `topic`. `exchange`: with
    "plain" a password in the options may travel to other hosts in the clear. `write_timestamps`:
    the column `timestamp` becomes the time of the records.
    """
    if is_before_4():
        raise SinkRefused(_NO_FORMAT.format(version=pyspark.__version__))
    id_option = "the option transactionalId of the format"
    settings = replace(
        read_settings(bootstrap_servers, options or {}, exchange, id_option=id_option),
        write_timestamps=write_timestamps,
    )
    if topic is not None:
        checked_topic("topic", topic)
    if tasks is not None and tasks < 1:
        raise ConfigError(f"tasks must be at least 1, not {tasks}")
    session = df.sparkSession
    if is_connect(session):
        return _route_remotely(df, settings, topic, tasks)
    # Threads that have created no session would not find the format when they start the write.
    activate(session)
    _check_session(session, settings)
    if tasks is None:
        # On a cluster, executors register some seconds after the session has started.
        check_slots(session)
    rows = select_rows(df, topic, with_times=write_timestamps)
    counts = {} if topic is None else {topic: partition_count(settings.client, topic)}
    tasks = tasks or choose_slots(session, counts)
    metadata = loop_metadata(rows, settings.client, topic)
    plan = RoutePlan(settings, topic, tasks, metadata=metadata)
    with workers_python(session):
        return _routed(rows, plan, is_streaming=rows.isStreaming)


def _check_session(session: SparkSession, settings: SinkSettings) -> None:
    """Refuses what can be known before the query starts: see `doors/checks.py` for the sink."""
    if is_on(session, "spark.dynamicAllocation.enabled"):
        raise SinkRefused(
            "spark.dynamicAllocation.enabled is true, and Spark does not run barrier stages "
            "then: set it to false"
        )
    check_secrets(session, settings)


def _routed(rows: DataFrame, plan: RoutePlan, *, is_streaming: bool) -> DataFrame:
    # As text, Spark would have to parse it, which the function of a flow must not ask for.
    columns = spark_columns(PACKED_COLUMNS)
    packed = rows.mapInArrow(_packing_task(plan), columns)
    routed = bring_to_slots(packed, plan.tasks)
    if plan.is_struct:
        know_columns(routed, columns)
    if not is_streaming:
        routed = routed.sortWithinPartitions("map_id", "ordinal")
    return routed.mapInArrow(_hop_task(plan), routed_columns(plan.metadata), barrier=True)


# Spark Connect.


def _route_remotely(
    df: DataFrame, settings: SinkSettings, topic: str | None, tasks: int | None
) -> DataFrame:
    """Routes without asking brokers, which the client may not reach."""
    try:
        rows = select_rows(df, topic, with_times=settings.write_timestamps)
        is_streaming, is_struct = df.isStreaming, False
    except PySparkException as problem:
        if problem.getCondition() != _IN_PIPELINE:
            raise
        rows, is_streaming, is_struct = _as_struct(df), True, True
    tasks = tasks or _remote_tasks(df.sparkSession, may_run=not is_struct)
    plan = RoutePlan(settings, topic, tasks, is_struct)
    try:
        return _routed(rows, plan, is_streaming=is_streaming)
    except PySparkException as problem:
        if problem.getCondition() != _IN_PIPELINE:
            raise
        raise SinkRefused(_NO_FLOW.format(version=pyspark.__version__)) from problem


def _as_struct(df: DataFrame) -> DataFrame:
    """All columns in one, for the function of a flow, which must not even ask for their names."""
    rows = df.selectExpr("struct(*) AS row")
    know_columns(rows, StructType().add("row", StructType()))
    return rows


def _remote_tasks(session: SparkSession, *, may_run: bool) -> int:
    """How many tasks can run at once, from what a Connect session shows."""
    master = (session.conf.get("spark.master", "") or "").strip()
    if (found := _LOCAL_MASTER.fullmatch(master)) is not None:
        return int(found[1])
    if master.startswith("local"):
        return _local_cores(session) if may_run else 1
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


# The tasks.


def _packing_task(plan: RoutePlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        # Here, because Spark 3.5 has no data sources in Python: there `route` is refused.
        from fencepost.spark.doors.routed_task import find_place

        place = find_place()
        if plan.is_struct:
            structs = (batch.column("row") for batch in batches)
            batches = (
                select_columns(
                    pa.RecordBatch.from_struct_array(s),
                    plan.topic,
                    with_times=plan.settings.write_timestamps,
                )
                for s in structs
            )
        batch_id = max(0, place.batch_id)  # A batch write has none.
        return pack(plan.packing(batch_id), place.attempt.partition_id, batches)

    return run


def _hop_task(plan: RoutePlan) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        attempt = this_attempt()
        with plain_errors():
            attempt.refuse_second()
            # Not from memory: in a worker of an earlier batch it may be outdated.
            cluster_id = cluster_of(plan.settings.client).describe_cluster().cluster_id or ""
        return with_trailer(batches, attempt, len(context.getTaskInfos()), cluster_id)

    return run

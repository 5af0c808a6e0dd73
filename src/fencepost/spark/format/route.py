"""Brings rows to their writers: the last call on a DataFrame before `format("fencepost")`.

    rows -> pack --shuffle--> the task that writes this partition: write, in a barrier stage
    rows -> pack, exchange directly, write, in a barrier stage

Theory of operation. A data source cannot ask Spark for a shuffle, so the DataFrame must arrive
ready: its rows packed into record batches (`transport/packing/`), each in the task that writes its
partition. The last step is a barrier step, and so the stage that Spark adds the data source's
writer to is a barrier stage: its tasks run once, all at the same time, and if one fails the job
fails. The writer refuses to work in any other stage. It hands the step the identity of the
transaction, and the step writes (`steps.py`), so that no batch passes through two processes.

Without a shuffle a query is about twice as fast, but its tasks are then those of the barrier stage,
and each needs a slot. Only a stream of which that is certain does without (`narrow_plans.py`),
unless the user says so.

The plan is made once per query and used for every batch. So nothing about the target topic is
fixed in it but the number of writing tasks: every packing task asks for the partition count and the
size limit of the topic itself. Partitions that are added later get rows from the next batch on, by
the same number of tasks.

Order. Rows of one input partition stay in their order. With a shuffle, the input partitions of a
batch DataFrame also follow each other in order; a stream cannot be sorted, so there the order
between rows of different input partitions is undefined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from fencepost.base.failures import ConfigError
from fencepost.spark.connection import partition_count
from fencepost.spark.failures import SinkRefused
from fencepost.spark.format.loops import loop_metadata
from fencepost.spark.format.narrow_plans import has_slots
from fencepost.spark.format.save_modes import explain_modes
from fencepost.spark.format.steps import WRITER_SECONDS, StepPlan, direct_step, shuffled_step
from fencepost.spark.format.task import BATCH_ID, routed_columns
from fencepost.spark.session import concurrent_tasks, is_connect, is_on
from fencepost.spark.sink.checks import check_slots
from fencepost.spark.sink.jobs.hosts import (
    check_secrets,
    exchange_hosts,
    has_remote_executors,
    meeting_place,
)
from fencepost.spark.sink.jobs.job import choose_slots
from fencepost.spark.sink.jobs.workers_python import workers_python
from fencepost.spark.sink.limits import TopicLimits
from fencepost.spark.sink.settings import SinkSettings, read_settings
from fencepost.spark.slots import announce_slots
from fencepost.spark.transport.exchange import MAX_TASKS
from fencepost.spark.transport.meeting.hand_over import make_token
from fencepost.spark.transport.meeting.stages import rendezvous_of
from fencepost.spark.transport.packing.packer import PackingPlan
from fencepost.spark.transport.packing.rows import select_columns, select_rows
from fencepost.spark.transport.shuffled import PACKED_COLUMNS, pack
from fencepost.spark.transport.slots import bring_to_slots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_LOCAL_MASTER: Final = re.compile(r"local\[(\d+)(,\s*\d+)?\]")

_IN_PIPELINE: Final = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""The condition under which a Connect server refuses to analyse a DataFrame."""

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


def route(
    df: DataFrame,
    bootstrap_servers: str,
    *,
    topic: str | None = None,
    options: Mapping[str, Any] | None = None,
    tasks: int | None = None,
    exchange: Literal["auto", "plain"] = "auto",
    shuffle: bool | None = None,
    write_timestamps: bool = False,
) -> DataFrame:
    """Prepares a DataFrame for `format("fencepost")`; call it last, and change nothing after it.

    The columns are those of the sink: `value`, and `key`, `topic`, `partition`, `headers` where
    they are needed. `topic`: one topic for all rows. `options`: the `kafka.` options of the sink
    (security, `kafka.compression.type`, `kafka.batch.size`). `tasks`: how many tasks write at the
    same time; by default as many as can run, at most one per partition of `topic`. `exchange`: with
    "plain" rows, and a password in the options, may travel to other hosts in the clear. `shuffle`:
    False if every batch has at most as many tasks as can run at the same time; by default rows go
    through Spark's shuffle, except in a stream of format fencepost whose steps keep rows in place.
    `write_timestamps`: the column `timestamp` becomes the time of the records.
    """
    id_option = "the option transactionalId of the format"
    settings = replace(
        read_settings(bootstrap_servers, options or {}, exchange, id_option=id_option),
        write_timestamps=write_timestamps,
    )
    if tasks is not None and tasks < 1:
        raise ConfigError(f"tasks must be at least 1, not {tasks}")
    session = df.sparkSession
    if is_connect(session):
        if shuffle is False:
            raise ConfigError("shuffle=False is not possible on Spark Connect: leave it out")
        return _route_remotely(df, settings, topic, tasks)
    _check_session(session, settings)
    if tasks is None:
        # On a cluster, executors register some seconds after the session has started.
        check_slots(session)
    rows = select_rows(df, topic, with_times=write_timestamps)
    counts = {} if topic is None else {topic: partition_count(settings.client, topic)}
    tasks = tasks or choose_slots(session, counts)
    metadata = loop_metadata(rows, settings.client, topic)
    plan = RoutePlan(settings, topic, tasks, metadata=metadata)
    hosts = _direct_hosts(rows, settings, shuffle)
    with workers_python(session):
        if hosts is None:
            return _through_shuffle(rows, plan, is_streaming=rows.isStreaming)
        return _directly(rows, plan, hosts)


def _check_session(session: SparkSession, settings: SinkSettings) -> None:
    """Refuses what can be known before the query starts: see `sink/checks.py` for the sink."""
    if is_on(session, "spark.dynamicAllocation.enabled"):
        raise SinkRefused(
            "spark.dynamicAllocation.enabled is true, and Spark does not run barrier stages "
            "then: set it to false"
        )
    check_secrets(session, settings)


def _direct_hosts(
    rows: DataFrame, settings: SinkSettings, shuffle: bool | None
) -> tuple[str, ...] | None:
    """The hosts between which tasks send each other rows, as in `hosts.py`; None for a shuffle."""
    session = rows.sparkSession
    if shuffle or (shuffle is None and not _is_certain(rows)):
        return None
    hosts = exchange_hosts(session, settings)
    if hosts is None and shuffle is False:
        raise SinkRefused(
            "shuffle=False sends rows from task to task in the clear, and the executors are on "
            "several hosts or Spark encrypts what it sends: leave it out, or pass "
            "exchange='plain' if Spark does not encrypt"
        )
    return hosts


def _is_certain(rows: DataFrame) -> bool:
    """Whether every batch can do without a shuffle."""
    # Batch DataFrames are shuffled for the order of their rows.
    if not rows.isStreaming:
        return False
    session = rows.sparkSession
    # A firewall may be between executors and driver, and a failed batch is not tried otherwise.
    if has_remote_executors(session):
        return False
    slots = concurrent_tasks(session)
    return slots <= MAX_TASKS and announce_slots(session, slots) and has_slots(rows, slots)


def _directly(rows: DataFrame, plan: RoutePlan, hosts: tuple[str, ...]) -> DataFrame:
    session = rows.sparkSession
    token = make_token()
    stages = rendezvous_of(session.sparkContext.applicationId, lambda: meeting_place(session))
    step = direct_step(StepPlan(plan, token, WRITER_SECONDS), stages.address, hosts)
    written = rows.mapInArrow(step, routed_columns(token, plan.metadata), barrier=True)
    return explain_modes(written)


def _through_shuffle(rows: DataFrame, plan: RoutePlan, *, is_streaming: bool) -> DataFrame:
    # As text, Spark would have to parse it, which the function of a flow must not ask for.
    columns = from_arrow_schema(PACKED_COLUMNS)
    packed = rows.mapInArrow(_packing_task(plan), columns)
    routed = bring_to_slots(packed, plan.tasks)
    if plan.is_struct:
        _know_columns(routed, columns)
    if not is_streaming:
        routed = routed.sortWithinPartitions("map_id", "ordinal")
    token = make_token()
    step = shuffled_step(StepPlan(plan, token, WRITER_SECONDS))
    written = routed.mapInArrow(step, routed_columns(token, plan.metadata), barrier=True)
    # The function of a flow is given back what Spark expects of it.
    return written if is_streaming and is_connect(rows.sparkSession) else explain_modes(written)


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
    return _through_shuffle(rows, plan, is_streaming=is_streaming)


def _as_struct(df: DataFrame) -> DataFrame:
    """All columns in one, for the function of a flow, which must not even ask for their names."""
    rows = df.selectExpr("struct(*) AS row")
    _know_columns(rows, StructType().add("row", StructType()))
    return rows


def _know_columns(df: DataFrame, columns: StructType) -> None:
    """Spares mapInArrow the request for its columns, of which it needs the names only."""
    df._cached_schema = columns  # type: ignore[attr-defined]  # noqa: SLF001


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
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch_id = int(context.getLocalProperty(BATCH_ID) or 0)
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
        return pack(plan.packing(batch_id), context.partitionId(), batches)

    return run

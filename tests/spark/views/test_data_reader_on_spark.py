"""The views and the forensics example in Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.records.batch import SealedBatch
from fencepost.records.builder import build_pairs
from fencepost.records.control import Marker, build_marker
from fencepost.records.transaction_log import (
    STATE_NAMES,
    TransactionMetadata,
    encode_key,
    encode_value,
)
from tests.spark.conftest import on_spark
from tests.spark.views.history import PLACE, History, written_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark()

NOW_MS = 1_790_000_000_000
MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[History, Path]]:
    data = tmp_path_factory.mktemp("views") / "data"
    with written_history(data) as written:
        yield written, data


def test_a_log_folder_is_a_table_of_records_with_their_fates(
    spark: SparkSession, history: tuple[History, Path]
) -> None:
    written, data = history
    shown = spark.read.format("fencepost").option("view", "records").load(str(data / str(PLACE)))
    counts = {row["fate"]: row["count"] for row in shown.groupBy("fate").count().collect()}
    assert counts.pop("control") == 7
    assert counts == Counter(written.fates.values())


def test_a_broker_is_a_table_of_transactions(
    spark: SparkSession, history: tuple[History, Path]
) -> None:
    written, _ = history
    reader = spark.read.format("fencepost").option("view", "transactions")
    reader = reader.option("kafka.bootstrap.servers", written.servers)
    shown = reader.option("subscribe", PLACE.topic).load()
    outcomes = [row["outcome"] for row in shown.select("outcome").collect()]
    assert Counter(outcomes) == {"committed": 5, "aborted": 2, "open": 1}


def test_a_view_is_not_a_stream(tmp_path: Path) -> None:
    from pyspark.sql.types import StructType

    from fencepost.spark.data_source import FencepostSource

    source = FencepostSource({"view": "records", "path": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"use it with spark\.read, not with readStream"):
        source.streamReader(StructType())


# -- the example ----------------------------------------------------------------------------------


def write_segment(folder: Path, batches: list[SealedBatch]) -> None:
    folder.mkdir(parents=True)
    offset = 0
    with (folder / f"{0:020}.log").open("wb") as file:
        for batch in batches:
            batch.data = bytearray(batch.data)
            batch.assign(offset, 0)
            file.write(batch.data)
            offset = batch.next_offset


def data(producer_id: int, at_ms: int) -> SealedBatch:
    return build_pairs(
        [(b"k", b"v")],
        timestamp_ms=at_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def commit(producer_id: int, at_ms: int) -> SealedBatch:
    marker = Marker(commit=True, coordinator_epoch=0)
    return build_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=at_ms)


def state(
    transactional_id: str,
    name: str,
    producer_id: int,
    at_ms: int,
    *,
    epoch: int = 0,
    partitions: Mapping[str, tuple[int, ...]] | None = None,
) -> SealedBatch:
    value = TransactionMetadata(
        producer_id=producer_id,
        previous_producer_id=-1,
        next_producer_id=-1,
        producer_epoch=epoch,
        last_producer_epoch=-1,
        timeout_ms=MINUTE_MS,
        state=STATE_NAMES.index(name),
        partitions=partitions or {},
        start_ms=-1 if name == "Empty" else at_ms,
        last_update_ms=at_ms,
        client_transaction_version=0,
    )
    return build_pairs([(encode_key(transactional_id), encode_value(value))], timestamp_ms=at_ms)


@pytest.fixture
def incident(tmp_path: Path) -> str:
    """A hanging transaction, a late but live one, a slow commit, and two fighting producers."""
    hour = 60 * MINUTE_MS
    write_segment(
        tmp_path / "refunds-0",
        [
            data(7, NOW_MS - hour),  # Nobody will end it: its coordinator knows nothing of it.
            data(8, NOW_MS - hour),  # As old, but its coordinator still has it.
            data(9, NOW_MS - 30_000),
            commit(9, NOW_MS - 1_000),
            data(10, NOW_MS - 500),
            commit(10, NOW_MS - 490),
        ],
    )
    storm = [state("fighters", "Empty", 11, NOW_MS - 20_000 + i * 100, epoch=i) for i in range(8)]
    write_segment(
        tmp_path / "__transaction_state-0",
        [
            state("gone", "CompleteCommit", 7, NOW_MS - hour),
            state("patient", "Ongoing", 8, NOW_MS - hour, partitions={"refunds": (0,)}),
            state("slow", "Ongoing", 9, NOW_MS - 30_000, partitions={"refunds": (0,)}),
            state("slow", "CompleteCommit", 9, NOW_MS - 1_000),
            *storm,
            state("quick", "CompleteCommit", 10, NOW_MS),
        ],
    )
    return str(tmp_path)


def test_the_example_finds_the_hanging_transaction_the_slow_commit_and_the_fencing_storm(
    spark: SparkSession, incident: str
) -> None:
    from fencepost_examples.forensics.questions import (
        fencing_storms,
        hanging_transactions,
        slowest_commits,
        view,
    )

    where: dict[str, Any] = {"path": incident}
    transactions = view(spark, "transactions", where)
    states = view(spark, "transaction_state", where)
    (hanging,) = hanging_transactions(transactions, states).collect()
    assert (hanging["producerId"], hanging["firstOffset"]) == (7, 0)
    slowest = slowest_commits(transactions, states, limit=1).collect()
    assert [(row["transactionalId"], row["durationMs"]) for row in slowest] == [("slow", 29_000)]
    (storm,) = fencing_storms(states).collect()
    assert (storm["transactionalId"], storm["producers"], storm["lastEpoch"]) == ("fighters", 8, 7)

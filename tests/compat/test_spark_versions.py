"""The central tests of source and sink on every older Spark that is supported; on 3.5 the sink's.

`make test` runs all of them on the newest. Each version has a process of its own here, because a
process can load one Spark only.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tools.spark_versions import OLDER, SPARK_35, environment_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]

SINK: Final = (
    "doors/test_foreach_batch.py::test_every_row_is_written_once_to_the_partition_of_its_key",
    (
        "queries/test_replays.py::"
        "test_a_repeated_batch_is_written_once_and_changes_the_state_once[update]"
    ),
    "doors/test_foreach_batch.py::test_a_job_that_fails_after_writing_is_aborted_and_retried",
    "doors/test_foreach_batch.py::test_an_unknown_outcome_of_end_txn_is_resolved_from_the_ledger",
    "doors/test_foreach_batch_stopping.py",
    "ways/test_routes.py::test_a_batch_larger_than_the_driver_expected_is_written_by_tasks",
    "ways/test_routes.py::test_rows_in_more_partitions_than_slots_go_through_the_shuffle",
    "ways/test_stage_slots.py",
    "engine/test_versions.py",
)
SOURCE: Final = (
    (
        "source/test_source.py::"
        "test_committed_records_are_read_with_all_columns_and_aborted_ones_are_not"
    ),
    "source/test_spark_versions.py",
)
TABLES: Final = (
    "views/test_data_reader_on_spark.py::test_a_log_folder_is_a_table_of_records_with_their_fates",
    "auditing/test_run.py::test_every_kind_of_finding_is_counted_and_named",
    "engine/test_private_names.py::test_the_engine_shows_everything_if_no_name_is_missing",
)
WRITES: Final = (
    "doors/test_stream_format.py::test_rows_are_written_once_and_a_repeated_batch_is_drained",
    (
        "doors/test_batch_write.py::test_the_same_version_again_is_drained_and_a_lower_one_is_refused"
    ),
)
STREAMS: Final = (
    "source/test_stream_reader.py::test_the_stream_reader_needs_no_private_module_of_spark",
    (
        "source/test_source.py::"
        "test_a_stream_is_read_in_limited_batches_and_continues_from_its_checkpoint"
    ),
    (
        "doors/test_foreach_batch.py::"
        "test_offsets_of_a_source_on_the_same_cluster_are_committed_in_the_transaction"
    ),
)
FIRST_WITH_WRITES: Final = (4, 1)
FIRST_WITH_STREAMS: Final = (4, 2)

DEATHS: Final = "test_driver_deaths.py::test_a_driver_that_dies_at_any_step_"
ON_35: Final = (
    *SINK,
    "source/test_spark_versions.py::test_the_tests_run_on_the_spark_that_was_asked_for",
    "transaction/test_transaction_round_trips.py",
    "ways/test_routes.py::test_an_observation_in_the_function_sees_all_rows_of_its_batch",
    "doors/test_foreach_batch_calls.py::test_the_sink_works_in_a_users_thread_pool",
    (
        "progress/test_progress.py::"
        "test_a_query_that_fails_and_is_started_again_shows_its_reason_and_then_its_new_run"
    ),
    "auditing/test_run.py::test_every_kind_of_finding_is_counted_and_named",
    (
        "test_executors.py::"
        "test_a_batch_is_written_once_if_an_executor_is_killed_in_mid_write[direct-2]"
    ),
    # Not the points with transformWithState, which came with 4.0. Each costs some seconds, so a
    # few of the others stand for all.
    *(
        f"{DEATHS}loses_and_duplicates_nothing[{point}]"
        for point in (
            "first-write-0-tv2",
            "entered-1-tv1",
            "sent-0-tv2",
            "ended-1-tv2",
            "complete-first-write-1-tv2",
            "applyInPandasWithState-written-1-tv2",
        )
    ),
)
"""Without source, format and views: Spark 3.5 has no data sources in Python."""


@pytest.mark.parametrize("version", OLDER)
def test_source_and_sink_keep_their_promises_on_an_older_spark(version: str) -> None:
    numbers = tuple(map(int, version.split(".")[:2]))
    chosen: tuple[str, ...] = SINK + SOURCE + TABLES
    chosen += WRITES if numbers >= FIRST_WITH_WRITES else ()
    chosen += STREAMS if numbers >= FIRST_WITH_STREAMS else ()
    run_tests(version, chosen)


def test_the_sink_keeps_its_promises_on_spark_35() -> None:
    run_tests(SPARK_35, ON_35)


def run_tests(version: str, chosen: tuple[str, ...]) -> None:
    """Runs tests of tests/spark on another version of Spark; none may be skipped."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [*command, "--disable-warnings", *(f"tests/spark/{name}" for name in chosen)],
        cwd=ROOT,
        env=environment_of(version) | {"FENCEPOST_TEST_SPARK": version},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]

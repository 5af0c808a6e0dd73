"""Goal: the sink is exactly-once on Apache Kafka as it is on fencepost.

Method: the main tests of tests/spark, which use only the wire protocol, run again on Apache Kafka.
They run in a separate process, because they need Spark with executors, and a process has one Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.compat.conftest import Side


DRIVERS = "tests/spark/test_driver_deaths.py::test_"
EXECUTORS = "tests/spark/test_executors.py::test_"
DYNAMIC = "tests/spark/test_dynamic_allocation.py::test_"
CALLS = "tests/spark/doors/test_foreach_batch_calls.py::test_"
REPLAYS = "tests/spark/queries/test_replays.py::test_"
REPEATED = f"{REPLAYS}a_repeated_batch_is_written_once_and_changes_the_state_once"
ROWS = "tests/spark/queries/test_rows.py::test_"
TOPICS = "tests/spark/queries/test_topics.py::test_"
FORMAT = "tests/spark/doors/test_"
STREAMS = f"{FORMAT}stream_format.py::test_"
STOPPED = f"{STREAMS}the_next_start_ends_the_transaction_of_a_query_that_was_stopped_in_mid_batch"
DYING = f"{DRIVERS}a_driver_that_dies_at_any_step_loses_and_duplicates_nothing"
IN_USE = f"{DRIVERS}a_second_query_with_an_id_in_use_is_refused_and_the_first_continues"
YOUNG = f"{DRIVERS}of_two_new_queries_with_one_id_the_first_is_fenced_and_does_not_take_it_back"

SELECTIONS = {
    "drivers that die, and two with one id": [
        f"{IN_USE}[written-1-tv2]",
        f"{YOUNG}[entered-0-tv2]",
        f"{YOUNG}[format-ending-0-tv2]",
        *(
            f"{DYING}[{point}]"
            for point in (
                "fenced-0-tv1",
                "first-write-0-tv2",
                "first-write-1-tv1",
                "sent-0-tv2",
                "sent-1-tv1",
                "ended-1-tv2",
                "complete-first-write-1-tv2",
                "left-outer-join-entered-1-tv2",
                "transformWithState-sent-1-tv2",
                "format-first-write-1-tv2",
                "format-ending-1-tv2",
                "format-sent-0-tv2",
                "format-sent-1-tv1",
            )
        ),
    ],
    "executors that die, and one that resumes": [
        f"{EXECUTORS}a_batch_is_written_once_if_an_executor_is_killed_in_mid_write[direct-2]",
        f"{EXECUTORS}a_batch_is_written_once_if_an_executor_is_killed_in_mid_write[shuffled-1]",
        f"{EXECUTORS}an_executor_that_resumes_during_the_next_batch_cannot_write[direct-1]",
        f"{EXECUTORS}deleted_shuffle_files_are_recomputed",
    ],
    "dynamic allocation: a stage that is tried again": [
        f"{DYNAMIC}a_stage_that_is_tried_again_while_a_task_writes_fails_the_attempt",
        f"{DYNAMIC}rows_that_are_packed_again_after_some_were_written_fail_the_attempt",
    ],
    "the format: streams that stop, and batch writes": [
        *(f"{STOPPED}[{version}]" for version in (1, 2)),
        f"{STREAMS}a_record_that_no_task_reported_aborts_the_batch",
        f"{FORMAT}batch_write.py::test_the_same_version_again_is_drained_and_a_lower_one_is_refused",
    ],
    "several DataFrames, skipped and incomplete batches": [
        f"{CALLS}several_dataframes_are_one_transaction",
        f"{CALLS}a_batch_with_a_refused_second_call_is_refused_after_a_restart_until_completed",
        f"{CALLS}a_skipped_batch_is_recorded_and_the_skip_can_be_repeated",
    ],
    "repeated batches, all routes, and topics that change": [
        f"{REPEATED}[update, state ids]",
        f"{REPEATED}[append, windows]",
        f"{REPEATED}[left outer join]",
        f"{REPEATED}[transformWithStateInPandas]",
        f"{ROWS}batches_of_every_size_and_route_are_written_once_with_all_kinds_of_rows",
        f"{TOPICS}partitions_added_to_source_and_target_are_used_by_the_next_batch[by the sink]",
        f"{TOPICS}a_target_that_is_deleted_and_created_again_gets_the_next_batches_once",
        f"{TOPICS}a_target_recreated_before_its_rows_are_committed_does_not_stop_the_query",
        f"{TOPICS}a_source_that_is_deleted_and_created_again_is_read_once_from_its_first_record",
        f"{TOPICS}a_query_that_reads_what_it_writes_processes_every_record_once",
    ],
}


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS.keys())
def test_the_sink_is_exactly_once_on_apache_kafka(
    apache_kafka: Side, selection: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    assert f"{len(selection)} passed" in apache_kafka.run_tests(selection, tmp_path)

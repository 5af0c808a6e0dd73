"""When the sink resets Spark's counts, and when it must not: `Counts` without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.spark.sink.jobs import counts
from fencepost.spark.sink.jobs.counts import Counts, JobCounter


class CountedBatch:
    """A batch whose source has counted the given rows."""

    def __init__(self, rows: int = 0) -> None:
        self.rows = rows

    def reset_counts(self) -> None:
        self.rows = 0

    def rdd_id(self) -> int:
        return 1

    def input_rows(self) -> tuple[int, ...]:
        return (self.rows,)

    def correct_input_rows(self, rows: tuple[int, ...]) -> None:
        (self.rows,) = rows

    def read(self, rows: int) -> None:
        self.rows += rows


def frame(*, reads_batch: bool = True) -> Any:
    return SimpleNamespace(reads_batch=reads_batch)


@pytest.fixture(autouse=True)
def plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "reads_batch", lambda df, rdd_id: df.reads_batch)


class Jobs:
    """A `JobCounter` that knows what has happened since the last batch."""

    def __init__(self, *, is_unchanged: bool) -> None:
        self._is_unchanged = is_unchanged

    def is_unchanged(self) -> bool:
        return self._is_unchanged

    def remember(self) -> None:
        pass


def counted(
    micro_batch: Any, *runs: tuple[Any, int], parts: int = 1, is_untouched: bool = False
) -> int:
    """Spark's counts after the sink has run these plans, each reading the given rows."""
    jobs: Any = Jobs(is_unchanged=is_untouched)
    kept = Counts(micro_batch, jobs, parts, is_first=True)
    for df, rows in runs:
        kept.begin_run(df)
        micro_batch.read(rows)
    kept.finish()
    rows_now: int = micro_batch.rows
    return rows_now


def test_a_plan_that_runs_again_counts_only_its_last_run() -> None:
    assert counted(CountedBatch(7), (frame(), 7), (frame(), 7)) == 7


def test_rows_cached_before_stay_counted() -> None:
    assert counted(CountedBatch(7), (frame(reads_batch=False), 0)) == 7


def test_with_several_parts_the_largest_count_is_kept() -> None:
    for sizes in ((7, 3), (3, 7), (7, 0), (0, 7)):
        assert counted(CountedBatch(), *((frame(), size) for size in sizes), parts=2) == 7


def test_a_part_that_does_not_read_the_batch_changes_nothing() -> None:
    elsewhere = frame(reads_batch=False)
    assert counted(CountedBatch(), (frame(), 7), (elsewhere, 0), parts=2) == 7
    assert counted(CountedBatch(), (elsewhere, 0), (frame(), 7), parts=2) == 7


def test_after_a_first_run_of_an_untouched_batch_the_counts_are_reset_all_the_same() -> None:
    assert counted(CountedBatch(), (frame(), 7), is_untouched=True) == 7
    assert counted(CountedBatch(), (frame(), 7), (frame(), 9), is_untouched=True) == 9


def test_counts_of_several_parts_do_not_depend_on_the_number_of_jobs() -> None:
    for sizes in ((7, 3), (3, 7)):
        runs = ((frame(), size) for size in sizes)
        assert counted(CountedBatch(), *runs, parts=2, is_untouched=True) == 7


class Scheduler:
    """Spark's scheduler, as far as `JobCounter` asks it."""

    def __init__(self) -> None:
        self.jobs = 3

    def numTotalJobs(self) -> int:  # noqa: N802
        return self.jobs


def job_counter(scheduler: Any) -> JobCounter:
    java_context = SimpleNamespace(dagScheduler=lambda: scheduler)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: java_context))
    session: Any = SimpleNamespace(sparkContext=context)
    return JobCounter(session)


def test_a_job_since_the_last_batch_is_noticed() -> None:
    scheduler = Scheduler()
    jobs = job_counter(scheduler)
    assert not jobs.is_unchanged(), "nothing is known before the first batch"
    jobs.remember()
    assert jobs.is_unchanged()
    scheduler.jobs += 1
    assert not jobs.is_unchanged()


def test_a_scheduler_that_does_not_tell_its_jobs_counts_as_changed() -> None:
    jobs = job_counter(SimpleNamespace())
    jobs.remember()
    assert not jobs.is_unchanged()

"""How far a source is behind, from what Spark reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fencepost.base.ids import topic_id_text
from fencepost.spark.progress.lag import SourceLag, SourceStatus


def source(
    start: Any, end: Any, latest: Any, rows: int = 0, description: str = "KafkaV2"
) -> dict[str, Any]:
    """A source as Spark reports it: offsets are JSON, and `None` becomes text."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in (start, end, latest)]
    keys = ("startOffset", "endOffset", "latestOffset")
    return {"description": description, "numInputRows": rows, **dict(zip(keys, texts, strict=True))}


def test_the_metrics_are_those_of_sparks_own_source() -> None:
    found = SourceLag().status(
        source(
            {"t": {"0": 0, "1": 0}},
            {"t": {"0": 7, "1": 4}},
            {"t": {"0": 10, "1": 4}, "u": {"0": 5}},
        )
    )
    assert found.behind == {"t-0": 3, "t-1": 0, "u-0": 5}
    assert found.offsets_behind == 8
    assert found.metrics == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "5",
        "avgOffsetsBehindLatest": str(8 / 3),
    }


def test_markers_and_aborted_records_are_not_counted_as_records() -> None:
    lag = SourceLag()
    # One record and one marker each time: half of the offsets are records.
    for batch in range(5):
        end = {"t": {"0": 2 * (batch + 1)}}
        found = lag.status(source({"t": {"0": 2 * batch}}, end, {"t": {"0": 1_000}}, rows=1))
    assert found.offsets_behind == 990
    assert found.records_behind == 495


def test_before_anything_was_read_every_offset_counts_as_a_record() -> None:
    found = SourceLag().status(source({"t": {"0": 5}}, {"t": {"0": 5}}, {"t": {"0": 12}}))
    assert (found.offsets_behind, found.records_behind) == (7, 7)


def test_rows_that_are_read_twice_do_not_make_more_records_than_offsets() -> None:
    found = SourceLag().status(source({"t": {"0": 0}}, {"t": {"0": 10}}, {"t": {"0": 30}}, rows=20))
    assert found.records_behind == 20


def test_the_first_batch_of_our_source_has_its_start_in_its_end() -> None:
    end = {
        "@start": {"t": {"0": 90}},
        "@initial": True,
        f"@id:t:{topic_id_text(bytes(16))}": {},
        "t": {"0": 100},
    }
    found = SourceLag().status(source("None", end, {"t": {"0": 120}}, rows=5))
    assert (found.offsets_behind, found.records_behind) == (20, 10)


def test_a_topic_that_was_created_again_is_not_behind_by_less_than_nothing() -> None:
    found = SourceLag().status(source({"t": {"0": 90}}, {"t": {"0": 100}}, {"t": {"0": 3}}))
    assert found.offsets_behind == 0


@pytest.mark.parametrize(
    ("end", "latest"),
    [("7", "9"), ("None", "None"), ("{}", "{}"), ('{"logOffset": 3}', "null"), ("not JSON", "")],
)
def test_the_lag_of_other_sources_is_unknown(end: str, latest: str) -> None:
    found = SourceLag().status(source("None", end, latest, 4, "FileStreamSource"))
    assert found == SourceStatus("FileStreamSource", 4)
    assert (found.offsets_behind, found.records_behind, found.metrics) == (None, None, {})


def test_offsets_that_are_parsed_already_are_understood() -> None:
    """As Spark Connect passes them."""
    given = {"endOffset": {"t": {"0": 1}}, "latestOffset": {"t": {"0": 4}}}
    assert SourceLag().status(given).offsets_behind == 3

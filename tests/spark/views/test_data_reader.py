"""The views, from a broker and from its folders, without a Spark session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")
pytest.importorskip("numba", reason="the spark extra is not installed")

from fencepost.base.failures import ConfigError, CorruptError
from fencepost.client.blocking import connect
from fencepost.spark.views.data_reader import ViewReader
from fencepost.spark.views.options import read_view_options
from fencepost.spark.views.schemas import COLUMNS, View
from tests.spark.views.history import PLACE, History, written_history


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[History, Path]]:
    data = tmp_path_factory.mktemp("views") / "data"
    with written_history(data) as written:
        yield written, data


Where = dict[str, str]


@pytest.fixture(params=["broker", "folder"])
def where(request: pytest.FixtureRequest, history: tuple[History, Path]) -> Where:
    written, data = history
    if request.param == "broker":
        return {"kafka.bootstrap.servers": written.servers}
    return {"path": str(data)}


@pytest.fixture
def written(history: tuple[History, Path]) -> History:
    return history[0]


def rows_of(view: str, where: Where, **options: str) -> list[dict[str, Any]]:
    reader = ViewReader(read_view_options({"view": view, **where, **options}))
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def test_every_record_is_shown_once_with_its_fate(where: Where, written: History) -> None:
    rows = rows_of("records", where, subscribe=PLACE.topic)
    data = [row for row in rows if row["marker"] is None]
    assert {row["value"].decode(): row["fate"] for row in data} == written.fates
    assert len(data) == len(written.fates)
    assert [row["offset"] for row in rows] == list(range(len(rows))), "markers have offsets too"


def test_markers_are_shown_where_they_are(where: Where, written: History) -> None:
    rows = rows_of("records", where, subscribe=PLACE.topic)
    markers = [row["marker"] for row in rows if row["fate"] == "control"]
    assert sorted(markers) == ["abort", "abort", *["commit"] * 5]


def test_each_record_names_its_transaction_and_sequence(where: Where, written: History) -> None:
    rows = rows_of("records", where, subscribe=PLACE.topic)
    data = [row for row in rows if row["marker"] is None]
    for name, identity in written.identities.items():
        of_name = [row for row in data if row["value"].startswith(f"{name}/".encode())]
        assert {row["producerId"] for row in of_name} == {identity.producer_id}
        assert {row["transactionStart"] for row in of_name} == {of_name[0]["offset"]}
        assert [row["sequence"] for row in of_name] == list(range(len(of_name)))


def test_every_transaction_is_shown_once_from_its_first_record_to_its_marker(
    where: Where, written: History
) -> None:
    rows = rows_of("transactions", where, subscribe=PLACE.topic)
    by_producer = {row["producerId"]: row for row in rows}
    assert len(rows) == len(by_producer) == len(written.identities)
    for name, identity in written.identities.items():
        fates = [fate for value, fate in written.fates.items() if value.startswith(f"{name}/")]
        row = by_producer[identity.producer_id]
        assert (row["outcome"], row["records"]) == (fates[0], len(fates))
        assert row["producerEpoch"] == identity.producer_epoch
        if row["outcome"] == "open":
            assert row["markerOffset"] is row["durationMs"] is row["endTimestamp"] is None
        else:
            assert row["markerOffset"] > row["lastOffset"] >= row["firstOffset"]
            assert row["durationMs"] >= 0


def test_every_state_change_of_an_id_is_shown_in_order(where: Where, written: History) -> None:
    rows = rows_of("transaction_state", where)
    states = [row["state"] for row in rows if row["transactionalId"] == "refunds-inner-1"]
    assert states == ["Empty", "Ongoing", "Ongoing", "PrepareAbort", "CompleteAbort"]
    ongoing = [row for row in rows if row["transactionalId"] == "refunds-outer-3"][-1]
    assert ongoing["state"] == "Ongoing"
    assert ongoing["partitions"] == ["refunds-0"]
    assert ongoing["producerId"] == written.identities["outer-3"].producer_id


def test_transactional_offsets_are_shown_with_their_fate(where: Where, written: History) -> None:
    rows = rows_of("offsets", where)
    assert {row["group"]: row["fate"] for row in rows} == written.offsets
    assert {(row["topic"], row["partition"], row["offset"]) for row in rows} == {("refunds", 0, 7)}


def test_the_producers_of_a_partition_and_what_they_hold_open(
    where: Where, written: History
) -> None:
    rows = rows_of("producers", where, subscribe=PLACE.topic)
    holding = {row["producerId"] for row in rows if row["transactionStart"] is not None}
    assert holding == {written.identities["outer-3"].producer_id}
    assert {row["producerId"] for row in rows} == {
        identity.producer_id for identity in written.identities.values()
    }


def test_folders_and_their_broker_show_the_same(history: tuple[History, Path]) -> None:
    written, data = history
    for view in ("records", "transactions", "transaction_state", "producers", "offsets"):
        chosen = {} if view in ("transaction_state", "offsets") else {"subscribe": PLACE.topic}
        here = rows_of(view, {"path": str(data)}, **chosen)
        there = rows_of(view, {"kafka.bootstrap.servers": written.servers}, **chosen)
        assert sorted(map(str, here)) == sorted(map(str, there)), view


def test_each_segment_is_a_task(history: tuple[History, Path]) -> None:
    _, data = history
    reader = ViewReader(read_view_options({"view": "records", "path": str(data)}))
    segments = list((data / str(PLACE)).glob("*.log"))
    assert len(reader.partitions()) == len(segments) > 3


def test_without_producer_snapshots_the_folders_show_the_same(
    history: tuple[History, Path], tmp_path: Path
) -> None:
    _, data = history
    copied = Path(shutil.copytree(data / str(PLACE), tmp_path / str(PLACE)))
    for snapshot in copied.glob("*.snapshot"):
        snapshot.unlink()
    for view in ("records", "transactions", "producers"):
        assert rows_of(view, {"path": str(copied)}) == rows_of(
            view, {"path": str(data)}, subscribe=PLACE.topic
        )


def test_ranges_of_a_broker_can_be_split_into_tasks(written: History) -> None:
    where = {"kafka.bootstrap.servers": written.servers}
    whole = rows_of("records", where, subscribe=PLACE.topic)
    split = rows_of("records", where, subscribe=PLACE.topic, maxRecordsPerPartition="5")
    assert [(row["offset"], row["fate"]) for row in split] == [
        (row["offset"], row["fate"]) for row in whole
    ]


def test_columns_are_chosen_by_name_in_the_order_of_the_view(where: Where) -> None:
    (first, *_) = rows_of("records", where, subscribe=PLACE.topic, columns="FATE, offset,headers")
    assert list(first) == ["offset", "fate", "headers"]


def test_the_torn_tail_of_a_live_log_is_left_out(
    history: tuple[History, Path], tmp_path: Path
) -> None:
    _, data = history
    copied = Path(shutil.copytree(data / str(PLACE), tmp_path / str(PLACE)))
    last = max(copied.glob("*.log"))
    whole = rows_of("records", {"path": str(copied)})
    last.write_bytes(last.read_bytes()[:-1])
    assert rows_of("records", {"path": str(copied)}) == whole[: len(whole) - 3]


def test_damage_stops_the_query_with_the_file_and_the_position(
    history: tuple[History, Path], tmp_path: Path
) -> None:
    _, data = history
    copied = Path(shutil.copytree(data / str(PLACE), tmp_path / str(PLACE)))
    first = min(copied.glob("*.log"))
    damaged = bytearray(first.read_bytes())
    damaged[80] ^= 1
    first.write_bytes(damaged)
    with pytest.raises(CorruptError, match=r"0\.log is damaged at byte 0\. `fencepost dump"):
        rows_of("records", {"path": str(copied)})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"view": "record"}, "view must be one of records, .* did you mean records"),
        ({"view": "records"}, "needs path .* or kafka.bootstrap.servers"),
        ({"view": "records", "path": "/no/such"}, "/no/such cannot be read"),
        ({"view": "records", "path": "."}, "there is no partition below"),
        ({"view": "records", "path": ".", "kafka.group.id": "g"}, "no meaning with path"),
        ({"view": "records", "path": ".", "colums": "g"}, "did you mean columns"),
        ({"view": "offsets", "path": ".", "subscribe": "t"}, "reads __consumer_offsets"),
        ({"view": "records", "path": ".", "columns": "fat"}, "columns has 'fat'"),
        (
            {
                "view": "records",
                "kafka.bootstrap.servers": "127.0.0.1:1",
                "kafka.isolation.level": "read_committed",
            },
            "shows everything",
        ),
    ],
    ids=str,
)
def test_wrong_options_are_refused_with_what_to_write(
    options: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        ViewReader(read_view_options(options)).partitions()


def test_a_topic_that_the_folders_do_not_have_is_named(history: tuple[History, Path]) -> None:
    _, data = history
    with pytest.raises(ConfigError, match=r"it has .*, __transaction_state, refunds"):
        rows_of("records", {"path": str(data)}, subscribe="payments")


def test_the_same_partition_of_two_brokers_is_not_mixed(
    history: tuple[History, Path], tmp_path: Path
) -> None:
    _, data = history
    shutil.copytree(data / str(PLACE), tmp_path / str(PLACE))
    with pytest.raises(ConfigError, match="refunds-0 twice"):
        rows_of("records", {"path": f"{data}, {tmp_path}"})


def test_records_behind_the_last_stable_offset_are_shown_too(history: tuple[History, Path]) -> None:
    written, _ = history
    with connect(written.servers) as cluster:
        stable = cluster.fetch({PLACE: 0}, max_wait_ms=0)[PLACE].last_stable_offset
    rows = rows_of("records", {"kafka.bootstrap.servers": written.servers}, subscribe=PLACE.topic)
    behind = {row["fate"] for row in rows if row["offset"] >= stable}
    assert behind == {"open", "aborted", "control"}


def test_compiled_and_plain_rows_are_the_same(
    history: tuple[History, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost.spark.views import record_rows

    where = {"path": str(history[1])}
    shown = {}
    for is_compiled in (False, True):
        chosen = (lambda *_: True) if is_compiled else (lambda *_: None)
        monkeypatch.setattr(record_rows, "compiled_columns", chosen)
        columns = ",".join(COLUMNS[View.RECORDS])
        shown[is_compiled] = rows_of("records", where, subscribe=PLACE.topic, columns=columns)
    assert shown[True] == shown[False]


def test_damage_in_the_last_segment_is_not_taken_for_its_end(
    history: tuple[History, Path], tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(history[1] / str(PLACE), tmp_path / str(PLACE)))
    last = max(copied.glob("*.log"))
    damaged = bytearray(last.read_bytes())
    damaged[16] = 7  # The message format of its first batch.
    last.write_bytes(damaged)
    with pytest.raises(CorruptError, match="is damaged at byte 0"):
        rows_of("records", {"path": str(copied)})


def test_preallocated_space_is_the_end_of_a_log(
    history: tuple[History, Path], tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(history[1] / str(PLACE), tmp_path / str(PLACE)))
    whole = rows_of("records", {"path": str(copied)})
    last = max(copied.glob("*.log"))
    last.write_bytes(last.read_bytes() + bytes(100_000))
    assert rows_of("records", {"path": str(copied)}) == whole

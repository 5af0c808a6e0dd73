"""Many partitions: the files of a stop, and crashes while they are created or deleted."""

from __future__ import annotations

import contextlib
import errno
from typing import Any, Final

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker.storage.partition_store import SYNCED_AT_ONCE_FROM
from fencepost.simulation.disk import PowerLost
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.broker.node_stage import FOLDER, DiedError, Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import batch_of, create_topic, produce, read_topic

pytestmark = pytest.mark.usefixtures("quiet", "one_step_per_turn")

MANY: Final = SYNCED_AT_ONCE_FROM + 5
PRODUCER: Final[dict[str, Any]] = {"producer_id": 4_000, "epoch": 0}


def written(stage: Stage, name: str = "many", count: int = MANY) -> None:
    create_topic(stage, name, count)
    for index in range(count):
        assert produce(stage, name, batch_of(b"%d" % index), index=index).error_code == 0


def check(stage: Stage, name: str = "many", count: int = MANY) -> None:
    for index in range(count):
        assert read_topic(stage, name, index) == [b"%d" % index]


def delete(stage: Stage, name: str) -> int:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)
    return int(stage.call(ApiKey.DELETE_TOPICS, 6, request).responses[0].error_code)


def folders(stage: Stage, part: str) -> list[str]:
    return [name for name in stage.disk.list_dir(FOLDER) if part in name]


# -- a stop ----------------------------------------------------------------------------------------


def test_many_logs_are_durable_after_a_clean_stop() -> None:
    stage = Stage(durability="os").start()
    written(stage)
    stage.stop()
    again = stage.lose_power().again()
    assert again.node.layout.clean
    check(again)
    again.stop()


def test_without_a_sync_of_the_whole_volume_each_log_is_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(durability="os").start()
    written(stage)
    monkeypatch.setattr(stage.disk, "sync_all", lambda path: False)
    stage.stop()
    again = stage.lose_power().again()
    check(again)
    again.stop()


def test_after_a_failed_sync_of_the_volume_nothing_is_synced_and_the_stop_is_not_clean() -> None:
    """The kernel may have dropped the pages: a later sync would succeed wrongly."""
    stage = Stage(durability="os").start()
    written(stage)
    stage.disk.fail_for_a_while(1, 1, errno.EIO, kinds=["sync_all"])
    synced = []
    call = stage.disk.call

    def watched(kind: str) -> None:
        synced.append(kind)
        call(kind)

    stage.disk.call = watched  # type: ignore[method-assign]
    stage.stop()
    assert "sync" not in synced[synced.index("sync_all") :]
    assert "did not confirm" in stage.fatal[0]
    del stage.disk.call
    again = stage.kill().again()
    assert not again.node.layout.clean
    check(again)
    again.stop()


def test_a_power_loss_during_a_stop_loses_nothing_if_it_is_marked_clean() -> None:
    stage = Stage(durability="os").start()
    written(stage)
    first = stage.disk.calls
    stage.stop()
    calls = stage.disk.calls - first
    for number in [*range(1, calls, 9), *range(max(1, calls - 12), calls + 1)]:
        stage = Stage(durability="os").start()
        written(stage)
        stage.disk.lose_power_at(number)
        try:
            stage.stop()
        except PowerLost:
            pass
        else:
            assert stage.fatal, number  # In a background job, so that the stop wrote nothing.
        again = stage.lose_power().again()
        if again.node.layout.clean:
            check(again)
        again.stop()


def test_a_small_log_restores_its_producers_without_a_snapshot() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t", 1)
    for number in range(3):
        produce(stage, "t", batch_of(b"%d" % number, sequence=number, **PRODUCER))
    stage.stop()
    names = stage.disk.list_dir(f"{FOLDER}/t-0")
    assert not [name for name in names if name.endswith((".snapshot", ".index"))]
    again = stage.again()
    repeated = produce(again, "t", batch_of(b"2", sequence=2, **PRODUCER))
    assert (repeated.error_code, repeated.base_offset) == (ErrorCode.NONE, 2)
    gap = produce(again, "t", batch_of(b"9", sequence=9, **PRODUCER))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(again, "t", batch_of(b"3", sequence=3, **PRODUCER)).base_offset == 3
    again.stop()


def test_an_expired_producer_is_not_restored_by_a_restart() -> None:
    stage = Stage(durability="os", settings={"producer.id.expiration.ms": "1000"}).start()
    create_topic(stage, "t", 1)
    produce(stage, "t", batch_of(b"0", sequence=0, **PRODUCER))
    stage.advance(3_600_000)
    assert not list(stage.node.partitions.get("t", 0).producers)  # type: ignore[union-attr]
    stage.stop()
    again = stage.again()
    assert not list(again.node.partitions.get("t", 0).producers)  # type: ignore[union-attr]
    again.stop()


# -- folders are created with the first batch ------------------------------------------------------


def test_a_partition_without_records_has_no_folder() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "t", 3)
        produce(stage, "t", batch_of(b"value"), index=1)
        assert [name for name in folders(stage, "t-") if name.startswith("t-")] == ["t-1"]
        assert read_topic(stage, "t", 0) == []
        assert delete(stage, "t") == ErrorCode.NONE
        stage.settle()
        assert "t-1" not in folders(stage, "t-")


@pytest.mark.parametrize("ending", ["kill", "lose_power"])
def test_after_a_crash_at_any_call_of_a_first_write_the_partition_is_writable(ending: str) -> None:
    durability = "os" if ending == "kill" else "fsync"
    stage = Stage(durability=durability).start()
    create_topic(stage, "t", 1)
    first = stage.disk.calls
    produce(stage, "t", batch_of(b"value"))
    calls = stage.disk.calls - first
    stage.abandon()
    for number in range(1, calls + 2):
        stage = Stage(durability=durability).start()
        create_topic(stage, "t", 1)
        stage.disk.lose_power_at(number)
        acknowledged = False
        with contextlib.suppress(PowerLost, ClosedError, DiedError, AssertionError, OSError):
            acknowledged = produce(stage, "t", batch_of(b"value")).error_code == ErrorCode.NONE
        again = getattr(stage, ending)().again()
        found = read_topic(again, "t")
        assert found == [b"value"] or (found == [] and not acknowledged)
        assert produce(again, "t", batch_of(b"more")).error_code == ErrorCode.NONE
        assert read_topic(again, "t")[-1] == b"more"
        assert not folders(again, "-stray")
        again.stop()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_a_first_write_that_fails_at_any_call_succeeds_on_retry(error: int) -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t", 1)
    first = stage.disk.calls
    produce(stage, "t", batch_of(b"value"))
    calls = stage.disk.calls - first
    stage.abandon()
    for number in range(1, calls + 1):
        with Stage(durability="os") as stage:
            create_topic(stage, "t", 1)
            stage.disk.fail_call(number, error)
            outcome = produce(stage, "t", batch_of(b"value"))
            if outcome.error_code != ErrorCode.NONE:
                assert outcome.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert produce(stage, "t", batch_of(b"value")).error_code == ErrorCode.NONE
            assert read_topic(stage, "t") == [b"value"]

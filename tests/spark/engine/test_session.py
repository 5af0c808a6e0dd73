"""How many tasks run at once in a session: on Spark Connect, and before executors are there."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fencepost.spark.engine.session import await_slots, concurrent_tasks, is_connect, is_on


def session(settings: Mapping[str, str], partitions: int = 0) -> Any:
    """The part of a Connect session that is used; without partitions it runs no job."""

    def tasks(_: int) -> Any:
        rows = [{"task": number} for number in range(partitions)]
        return SimpleNamespace(selectExpr=lambda _: SimpleNamespace(collect=lambda: rows))

    return SimpleNamespace(conf=settings, range=tasks)


@pytest.mark.parametrize(
    ("settings", "partitions", "slots"),
    [
        ({"spark.master": "local"}, 0, 1),
        ({"spark.master": "local[4]"}, 0, 4),
        ({"spark.master": "local[4,2]"}, 0, 4),
        ({"spark.master": "local[4]", "spark.task.cpus": "2"}, 0, 2),
        ({"spark.master": "local[2]", "spark.task.cpus": "4"}, 0, 1),
        ({"spark.master": "local[*]"}, 2, 2),
        ({"spark.master": "local-cluster[2,1,1024]"}, 2, 1),
        ({"spark.master": "spark://host:7077"}, 12, 12),
        ({"spark.master": "spark://host:7077"}, 2, 1),
        ({"spark.master": "yarn", "spark.default.parallelism": "200"}, 200, 1),
    ],
)
def test_the_slots_of_a_connect_session_are_known_or_one(
    settings: dict[str, str], partitions: int, slots: int
) -> None:
    assert concurrent_tasks(session(settings, partitions)) == slots


def test_settings_of_the_application_are_read_from_a_connect_session() -> None:
    found = session({"spark.speculation": "true"})
    assert is_connect(found)
    assert is_on(found, "spark.speculation")
    assert not is_on(found, "spark.dynamicAllocation.enabled")


# On a cluster whose executors register after the session has started.


class StartingSession:
    """The part of a session on a cluster that is used; `slots` is what Spark says each time."""

    def __init__(self, slots: list[int], **settings: str) -> None:
        self._slots = slots
        spark = SimpleNamespace(
            resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
            maxNumConcurrentTasks=lambda _: slots.pop(0) if len(slots) > 1 else slots[0],
        )
        self.sparkContext = SimpleNamespace(
            _jsc=SimpleNamespace(sc=lambda: spark),
            _conf={"spark.master": "spark://host:7077"} | settings,
        )


def test_the_first_executor_is_awaited_for_a_while() -> None:
    assert await_slots(cast("Any", StartingSession([0, 0, 3])), 60) == 3
    assert await_slots(cast("Any", StartingSession([0])), 0.1) == 0


def test_an_audit_is_planned_for_executors_that_are_not_there_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyarrow", reason="the spark extra is not installed")
    from fencepost.spark.auditing import run

    monkeypatch.setattr(run, "_EXECUTOR_WAIT_SECONDS", 0.1)
    dynamic = {"spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "2"}
    known = dynamic | {"spark.dynamicAllocation.maxExecutors": "5"}
    said: list[str] = []

    def slots(answers: list[int], **settings: str) -> int:
        return run._slots(cast("Any", StartingSession(answers, **settings)), said.append)

    assert slots([0], **dynamic) == run._UNKNOWN_SLOTS
    assert slots([0], **known) == 10
    assert slots([3]) == 3
    assert said == []
    assert slots([0, 0, 4]) == 4
    assert slots([0]) == run._UNKNOWN_SLOTS
    assert said == ["waiting for the first executor"] * 2

"""How many tasks run at once in a session of Spark Connect, which does not say so itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.spark.session import concurrent_tasks, is_connect, is_on


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

"""Goal: on several hosts with several addresses each, tasks and driver find each other, and nothing
travels in the clear unless the user or Spark's settings say so.

Method: hosts as network namespaces (`namespaces.py`), in which only the addresses that Spark knows
are reachable from everywhere. The workers have another host name than the driver.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.spark.conftest import environment, on_spark, require_spark
from tests.spark.standalone.namespaces import Namespaces, inside, reason_without

pytestmark = on_spark(600)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the driver said about each query."""
    require_spark()
    if (reason := reason_without()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    program = [sys.executable, "-m", "tests.spark.standalone.several_hosts", str(folder)]
    with Namespaces() as hosts:
        found = subprocess.run(
            [*inside(hosts.driver), *program, *hosts.workers],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=560,
        )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-4000:]
    answer: dict[str, list[str]] = json.loads(found.stdout.splitlines()[-1])
    return answer


def test_between_hosts_rows_go_through_sparks_shuffle(said: dict[str, list[str]]) -> None:
    assert set(said["default"]) == {"route shuffled", "finished"}, said


def test_if_the_user_allows_it_tasks_on_several_hosts_connect_to_each_other(
    said: dict[str, list[str]],
) -> None:
    assert set(said["plain"]) == {"route direct", "finished"}, said


def test_a_password_is_not_sent_to_other_hosts_in_the_clear(said: dict[str, list[str]]) -> None:
    (failure,) = said["password"]
    assert "Spark would send it in the clear to executors on other hosts" in failure
    assert "hunter2" not in "".join(said["output"])


def test_a_source_does_not_accept_a_password_that_came_in_the_clear(
    said: dict[str, list[str]],
) -> None:
    (failure,) = said["source password"]
    assert "Spark sent it in the clear from" in failure
    assert "to an executor on localhost" in failure
    assert "Nothing was read" in failure


def test_if_the_user_allows_it_a_source_logs_in_from_other_hosts(
    said: dict[str, list[str]],
) -> None:
    assert set(said["source plain"]) == {"route shuffled", "finished"}, said

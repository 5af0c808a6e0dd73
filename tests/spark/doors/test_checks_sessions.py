"""Goal: a session that cannot keep the guarantee is refused, and loses nothing.

Method: real sessions with each setting that breaks it, one after the other. Then the same queries
are restarted from their checkpoints in a correct session.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost.client.blocking import Cluster
from tests.spark.conftest import Sessions, on_spark, read_values
from tests.spark.pipeline import Pipeline, numbered

pytestmark = on_spark(300)

REFUSED = {
    "spark.speculation is true: a second copy of a task must never write. Set it to false": (
        "local[2]",
        {"spark.speculation": "true"},
    ),
    # A cluster without executors.
    "no executor that can run a task registered within 0 s: the write stage needs at least one "
    "free core": ("local-cluster[0,1,1024]", {}),
}


def test_sessions_that_cannot_guarantee_exactly_once_are_refused_and_lose_nothing(
    sessions: Sessions,
    bootstrap: str,
    cluster: Cluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fencepost.spark.doors.checks.EXECUTOR_WAIT_SECONDS", 0.2)
    # The settings of the first session apply to the JVM, and so to all later sessions.
    sessions.session("local[2]")
    pipelines = []
    for number, (sentence, (master, settings)) in enumerate(REFUSED.items()):
        session = sessions.session(master, settings)
        pipeline = Pipeline(session, bootstrap, tmp_path / str(number), new_topic())
        pipeline.add(numbered(number))
        failure = pipeline.run()
        assert failure is not None
        assert sentence in failure
        assert read_values(cluster, pipeline.topic) == []
        pipelines.append(pipeline)
    for number, pipeline in enumerate(pipelines):
        pipeline.spark = sessions.session("local[2]")
        assert pipeline.run() is None
        assert sorted(read_values(cluster, pipeline.topic)) == sorted(numbered(number))

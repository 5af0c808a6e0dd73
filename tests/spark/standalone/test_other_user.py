"""Goal: executors need the wheel and a few packages, and nothing else.

Method: workers in an account without the checkout (`other_user.py`), the wheel shipped with
`--py-files`. Its dependencies have native modules, which `--py-files` cannot carry: a second
application shows what the user is told if one is missing.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.client.blocking import Cluster
from tests.spark.conftest import ROOT, on_spark, require_spark
from tests.spark.standalone import other_user
from tests.spark.standalone.application import Application
from tests.spark.standalone.cluster import StandaloneCluster

pytestmark = on_spark(400)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can read, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="fencepost-account-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def build_wheel(folder: Path) -> Path:
    """The wheel as a zip file: Spark puts no other kind on the path of Python workers."""
    command = [sys.executable, "-m", "build", "--quiet", "--wheel", "--no-isolation"]
    environment = {name: value for name, value in os.environ.items() if name != "FENCEPOST_SRC"}
    subprocess.run([*command, "--outdir", str(folder), str(ROOT)], check=True, env=environment)
    (wheel,) = folder.glob("*.whl")
    return wheel.rename(folder / "fencepost.zip")


def test_executors_need_the_wheel_and_what_the_documentation_lists(
    bootstrap: str, cluster: Cluster, shared: Path
) -> None:
    require_spark()
    if (reason := other_user.reason_without()) is not None:
        pytest.skip(reason)
    wheel = build_wheel(shared)
    python = other_user.furnish(shared / "home")
    account = other_user.variables(shared / "home")
    with StandaloneCluster(shared, workers=0) as spark_cluster:
        for _ in range(2):
            spark_cluster.add_worker(
                prefix=other_user.in_account(), variables=account, owner=other_user.USER
            )
        application = Application(
            f"account-{shared.name}",
            shared / "driver",
            bootstrap,
            spark_cluster.master_url,
            spark_cluster.settings() | {"spark.pyspark.python": str(python)},
            py_files=wheel,
            partitions=2,
        )
        application.create_topics(cluster)
        application.feed(cluster, 3_000)
        try:
            application.start()
            application.finish()
            pids = [pid for each in spark_cluster.workers for pid in each.pids()]
            owners = {Path(f"/proc/{pid}").stat().st_uid for pid in pids}
        finally:
            application.driver.kill()
        application.assert_exactly_once()
    assert owners == {pwd.getpwnam(other_user.USER).pw_uid}
    assert application.routes.keys() <= {"direct", "shuffled"}

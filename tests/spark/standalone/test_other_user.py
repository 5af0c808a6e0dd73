"""Goal: a query needs the wheel and a few packages, and nothing else.

Method: workers and driver in an account without the checkout (`other_user.py`), the wheel shipped
with `--py-files`. Its dependencies have native modules, which `--py-files` cannot carry, so they
are installed there.
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
from tests.spark.standalone import driver, other_user
from tests.spark.standalone.application import Application
from tests.spark.standalone.cluster import StandaloneCluster
from tests.spark.ways import watching

pytestmark = on_spark(600)


def build_wheel(folder: Path) -> Path:
    """The wheel as a zip file: Spark puts no other kind on the path of Python workers."""
    command = [sys.executable, "-m", "build", "--quiet", "--wheel", "--no-isolation"]
    environment = {name: value for name, value in os.environ.items() if name != "FENCEPOST_SRC"}
    subprocess.run([*command, "--outdir", str(folder), str(ROOT)], check=True, env=environment)
    (wheel,) = folder.glob("*.whl")
    return wheel.rename(folder / "fencepost.zip")


class Account:
    """Two workers of another user, and applications that ship the wheel to them."""

    def __init__(self, folder: Path, bootstrap: str, spark: StandaloneCluster) -> None:
        self.folder = folder
        self.python = other_user.furnish(folder / "home")
        self._wheel = build_wheel(folder)
        self._bootstrap = bootstrap
        self._spark = spark
        for _ in range(2):
            spark.add_worker(
                prefix=other_user.in_account(),
                variables=other_user.variables(folder / "home"),
                owner=other_user.USER,
            )

    def application(self, name: str) -> Application:
        home, folder = self.folder / "home", self.folder / name
        folder.mkdir()
        script = str(shutil.copy(driver.__file__, folder))
        # The driver imports it by its name in the checkout.
        (folder / "tests" / "spark" / "ways").mkdir(parents=True)
        shutil.copy(watching.__file__, folder / "tests" / "spark" / "ways")
        submit = [str(home / "spark" / "bin" / "spark-submit"), "--master", self._spark.master_url]
        found = Application(
            f"{name}-{self.folder.name}",
            folder,
            self._bootstrap,
            self._spark.master_url,
            self._spark.settings(),
            prefix=other_user.in_account(),
            # Executors do not see this path: here it stands for an installation at the driver.
            variables=other_user.variables(home)
            | {"PYSPARK_PYTHON": str(self.python), "PYTHONPATH": str(self._wheel)},
            program=[*submit, "--py-files", str(self._wheel), script],
            partitions=2,
            is_quick=False,
        )
        shutil.chown(folder, other_user.USER)
        return found

    def owners(self) -> set[int]:
        """The users of all processes of the workers."""
        pids = [pid for each in self._spark.workers for pid in each.pids()]
        return {Path(f"/proc/{pid}").stat().st_uid for pid in pids}


@pytest.fixture(scope="module")
def account(bootstrap: str) -> Iterator[Account]:
    require_spark()
    if (reason := other_user.reason_without()) is not None:
        pytest.skip(reason)
    # Every user can read it, unlike the folders of pytest.
    folder = Path(tempfile.mkdtemp(prefix="fencepost-account-"))
    folder.chmod(0o755)
    try:
        with StandaloneCluster(folder, workers=0) as spark:
            yield Account(folder, bootstrap, spark)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_executors_need_the_wheel_and_what_the_documentation_lists(
    account: Account, cluster: Cluster
) -> None:
    application = account.application("complete")
    application.create_topics(cluster)
    application.feed(cluster, 3_000)
    try:
        application.start()
        # The workers lack nothing, or this fails at once with what the driver said.
        application.max_restarts = 0
        application.await_progress(cluster, 0)
        owners = account.owners()
        application.finish()
    finally:
        application.driver.kill()
    application.assert_exactly_once()
    assert owners == {pwd.getpwnam(other_user.USER).pw_uid}
    assert set(application.routes) == {"direct"}
    assert application.restarts == 0

"""The programs of docs/start.md are run as a reader would, killed once, and audited."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost
from fencepost_examples.refunds.spark.settlements import Topics

pytest.importorskip("confluent_kafka", reason="the programs use it")

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "start.md").read_text()
PROGRAM = re.compile(r'```python title="([\w.]+)"\n(.*?)```', re.DOTALL)
COLUMNS = re.compile(r"^fencepost txn list.*?\n```\n\n```\n(.*?)\n", re.MULTILINE | re.DOTALL)

SHORTER = {"time.sleep(0.2)": "time.sleep(0.02)"}
"""Pauses for a reader, which a test does not need. The ten seconds at the end of the input stay,
and so does the session timeout: a shorter one would expire before the client's next heartbeat."""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_start_pages_pipeline_writes_everything_once_even_if_killed(tmp_path: Path) -> None:
    with fencepost.Broker() as broker:
        programs = dict(PROGRAM.findall(PAGE))
        for name, code in programs.items():
            for before, after in {"127.0.0.1:9092": broker.bootstrap_servers, **SHORTER}.items():
                code = code.replace(before, after)
            (tmp_path / name).write_text(code)

        def run(*command: str) -> list[str]:
            done = subprocess.run(
                [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

        created = {line.removeprefix("created ") for line in run("topics.py")}
        assert created.isdisjoint(topics_of_other_pages())
        run("settle.py")
        killed = subprocess.Popen(
            [sys.executable, "refund.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert killed.stdout is not None
        with killed, killed.stdout:
            assert killed.stdout.readline().startswith("committed")
            killed.kill()
        at = ("--bootstrap-servers", broker.bootstrap_servers)
        columns, transaction = run("-m", "fencepost", "txn", "list", *at)
        assert columns.split() == COLUMNS.findall(PAGE)[0].split()
        assert transaction.startswith("card-refunds-0 ")
        run("refund.py")
        assert run("audit.py") == [
            "card-refunds: 2000 keys, 2000 records, 1 at most per key",
            "card-audit: 20000 keys, 20000 records, 1 at most per key",
            "spark-refunds: 0 keys, 0 records, 0 at most per key",
        ]


def topics_of_other_pages() -> set[str]:
    """What the README and the refunds example create: all of them may be tried on one broker."""
    example = Topics.of()
    readme = (ROOT / "README.md").read_text()
    in_readme = re.findall(r"^fencepost topic create (\S+)", readme, re.MULTILINE)
    assert in_readme
    return {example.settlements, example.refunds, example.audit, *in_readme}

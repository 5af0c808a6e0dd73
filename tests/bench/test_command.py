"""`fencepost bench` finds its checkout, says what is missing, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.generator.tally import processor_seconds
from fencepost.cli.commands.bench import NoBenchError, bench, checkout

ROOT = Path(__file__).resolve().parents[2]


def test_bench_runs_from_any_folder_of_a_checkout() -> None:
    assert checkout(ROOT / "src" / "fencepost" / "cli") == ROOT


def test_without_a_checkout_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoBenchError, match="get a checkout of fencepost"):
        checkout(tmp_path)


def test_the_command_passes_its_arguments_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(["--list"]) == 0
    assert "growth-ids" in capfd.readouterr().out


def test_without_apache_kafka_that_side_is_skipped_with_a_message(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    status = bench(["--sides", "kafka", "--only", "small"])

    assert status == 2
    said = capfd.readouterr().out
    assert "skipped: Apache Kafka needs java 17 or newer, javac, mvn" in said
    assert "nothing to measure" in said


def test_a_source_folder_without_fencepost_is_skipped_with_a_message(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FENCEPOST_SRC", str(tmp_path))

    status = bench(["--sides", "fencepost,other", "--only", "small"])

    assert status == 2
    said = capfd.readouterr().out
    assert "which has no fencepost" in said
    assert "skipped: there is no side 'other'" in said


def test_an_interrupted_run_leaves_no_process_and_no_files(tmp_path: Path) -> None:
    """By SIGTERM, which is handled as if it were Ctrl-C."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "bench", "--quick", "--only", "small", "--sides", "fencepost"]
    with subprocess.Popen(
        [*command, "--json", str(tmp_path / "out.json")],
        cwd=ROOT,
        env=dict(os.environ, TMPDIR=str(folder), PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT}"),
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        # The shared broker is up by then, and the generator is running.
        assert any("warm-up" in line for line in run.stdout)
        children = _children(run.pid)
        run.send_signal(signal.SIGTERM)
        said = run.stdout.read()

    assert run.returncode == 130
    assert "interrupted" in said
    assert children
    assert not any(processor_seconds(child) for child in children)
    assert list(folder.iterdir()) == []


def _children(pid: int) -> list[int]:
    names = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for name in names for child in name.read_text().split()]

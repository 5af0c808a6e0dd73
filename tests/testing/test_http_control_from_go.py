"""The control over HTTP from a Go program, which needs the standard library alone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.testing.test_http_control import PATIENCE_SECONDS, read_control, start
from tools.fencepost_process import ROOT

PROGRAM = Path(__file__).parent / "control_from_go.go"


def test_the_guide_shows_the_function_that_is_tried_here() -> None:
    page = (ROOT / "docs" / "guide" / "testing.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```go\n(.*?)```", page, re.DOTALL)
    assert example in PROGRAM.read_text(encoding="utf-8")


@pytest.mark.compat
@pytest.mark.skipif(shutil.which("go") is None, reason="needs go")
def test_a_go_program_loses_an_answer_and_looks_at_what_is_committed(tmp_path: Path) -> None:
    built = tmp_path / "control"
    subprocess.run(
        ["go", "build", "-o", built, PROGRAM],
        check=True,
        timeout=300,
        env={**os.environ, "GO111MODULE": "off"},
    )
    with start("--listen", "127.0.0.1:0") as process:
        try:
            control = read_control(process)
            control.contents.produce("refunds", "a", "b")
            ended = subprocess.run(
                [built, f"http://{control.host}", control.token_file, control.bootstrap],
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)
    assert ended.stdout.splitlines() == [
        "first: EOF",
        "second: <nil>",
        "committed: 2",
        "fired: 1",
        "refused: POST /faults: This broker has no API 'EndTx': did you mean 'EndTxn'?",
    ], ended.stderr

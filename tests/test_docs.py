"""What the documentation says of the code is made from the code, and is not stale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_generated_parts_of_the_documentation_are_those_that_make_docs_would_write() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.write_docs", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

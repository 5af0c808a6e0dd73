"""Writes constraints.txt with the newest versions of everything, except pinned ones.

It needs only Python: it creates an environment, installs fencepost with all extras and dependency
groups, and lists what was installed.
"""

from __future__ import annotations

import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "constraints.txt"

HELD: Final = {"pyspark": "4.3.0"}
"""A newer Spark is used once its tests were run: it may change what the sink relies on."""

HEADER: Final = """\
# The versions that fencepost is developed, tested and released with: all extras and dependency
# groups, and pip itself. `pip install -c constraints.txt ...`. Written by `make constraints`; no
# addresses.
# pyspark is held at the newest version that was tried; docs/spark/versions.md has the others.
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        held = [f"{name}=={version}" for name, version in HELD.items()]
        # Dependency groups came with pip 25.1.
        subprocess.run([*pip, "install", "--quiet", "--upgrade", "pip"], check=True)
        groups = [
            "--group",
            f"{ROOT}/pyproject.toml:dev",
            "--group",
            f"{ROOT}/pyproject.toml:release",
        ]
        subprocess.run(
            [*pip, "install", "--quiet", f"{ROOT}[spark,connect,java,postgres]", *groups, *held],
            check=True,
        )
        # With --all, because pip and setuptools would be left out otherwise.
        frozen = subprocess.run(
            [*pip, "freeze", "--all"], capture_output=True, text=True, check=True
        )
    lines = [line for line in frozen.stdout.splitlines() if not line.startswith("fencepost")]
    # An address here would be a local one, useless elsewhere.
    assert all("==" in line and "://" not in line for line in lines), lines
    TARGET.write_text(HEADER + "".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()

"""Writes constraints.txt anew: the newest versions of everything, except what is held back.

Needs nothing but Python: it makes an environment of its own, installs fencepost with all extras,
and writes down what came.
"""

from __future__ import annotations

import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "constraints.txt"

HELD: Final = {"pyspark": "4.2.0"}
HEADER: Final = """\
# Every version that fencepost is developed and tested with, with all its extras (dev, docs, spark, java):
# `pip install -c constraints.txt ...`. Made by `make constraints`; names and versions only.
# pyspark stays at 4.2.0 as long as no Kafka connector of Spark's own is published for a later one,
# because that connector is what the pipeline is measured against.
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        held = [f"{name}=={version}" for name, version in HELD.items()]
        subprocess.run(
            [*pip, "install", "--quiet", f"{ROOT}[dev,docs,spark,java]", *held], check=True
        )
        # With --all, because setuptools, which builds pyspark, is otherwise left out.
        frozen = subprocess.run(
            [*pip, "freeze", "--all"], capture_output=True, text=True, check=True
        )
    lines = [
        line for line in frozen.stdout.splitlines() if not line.startswith(("fencepost", "pip=="))
    ]
    # An address here would be one of this machine's, and of no use to anybody else.
    assert all("==" in line and "://" not in line for line in lines), lines
    TARGET.write_text(HEADER + "".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()

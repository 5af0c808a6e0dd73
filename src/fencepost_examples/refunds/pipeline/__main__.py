"""Creates the project of the pipeline.

    python -m fencepost_examples.refunds.pipeline FOLDER --bootstrap-servers localhost:9092

Then run `spark-pipelines run` in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Final

TRANSFORMATIONS: Final = Path(__file__).parent / "transformations"


def create_project(folder: Path, bootstrap_servers: str, prefix: str = "") -> Path:
    """Creates spec and transformations; returns the path of the spec."""
    storage = folder / "storage"
    storage.mkdir(parents=True, exist_ok=True)
    shutil.copytree(
        TRANSFORMATIONS,
        folder / "transformations",
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    spec = {
        "name": "refunds",
        "storage": storage.resolve().as_uri(),
        "libraries": [{"glob": {"include": "transformations/**"}}],
        "configuration": {
            "refunds.bootstrap.servers": bootstrap_servers,
            "refunds.prefix": prefix,
        },
    }
    # JSON is YAML, too.
    path = folder / "spark-pipeline.yml"
    path.write_text(json.dumps(spec, indent=2) + "\n", "utf-8")
    return path


def parser() -> argparse.ArgumentParser:
    """Returns the parser of this program's options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("folder", type=Path, help="the folder of the project")
    made.add_argument("--bootstrap-servers", required=True)
    made.add_argument("--prefix", default="", help="the prefix of all topic names")
    return made


def main() -> None:
    """Creates the project and says how to run it."""
    options = parser().parse_args()
    create_project(options.folder, options.bootstrap_servers, options.prefix)
    print(f"cd {options.folder} && spark-pipelines run")


if __name__ == "__main__":
    main()

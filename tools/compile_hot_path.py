"""Compiles the broker's hot path with mypyc into build/compiled: a third less time per request.

The modules below are compiled as one group, so that calls and attributes among them need no
dictionary. All others are copied; no module depends on whether it is compiled. Sources are never
compiled in place: a compiled module beside its source would silently hide later edits. See
docs/decisions/0007-the-hot-path-is-compiled.md.

    python -m tools.compile_hot_path        # prints the folder, for PYTHONPATH
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
TARGET: Final = ROOT / "build" / "compiled"
SAY_SECONDS: Final = 15
STAMP: Final = "made-from"

HOT_PATH: Final = (
    "base/system.py",
    "records/batch.py",
    "records/builder.py",
    "records/compression.py",
    "records/control.py",
    "records/entry.py",
    "records/produced.py",
    "records/scan.py",
    "records/transaction_log.py",
    "records/varint.py",
    "log/config.py",
    "log/epochs.py",
    "log/log.py",
    "log/roll.py",
    "log/scan.py",
    "log/segment/aborted.py",
    "log/segment/batches.py",
    "log/segment/index.py",
    "log/segment/reading.py",
    "log/segment/segment.py",
    "log/segment/walk.py",
    "log/segment_list.py",
    "log/times.py",
    "partition/admission.py",
    "partition/open_txns.py",
    "partition/opening.py",
    "partition/partition.py",
    "partition/producer_check.py",
    "partition/producers.py",
    "partition/snapshots.py",
    "partition/verification.py",
    "coordinator/txn/apply.py",
    "coordinator/txn/decide.py",
    "coordinator/txn/end_table.py",
    "coordinator/txn/events.py",
    "coordinator/txn/prepare.py",
    "coordinator/metadata/state.py",
    "wire/codec.py",
    "wire/framing.py",
    "broker/authorization.py",
    "broker/network/connection.py",
    "broker/context.py",
    "broker/deadlines.py",
    "broker/dispatch.py",
    "broker/faults/faults.py",
    "broker/partitions/leadership.py",
    "broker/transactions/markers.py",
    "broker/network/memory.py",
    "broker/metrics/counters.py",
    "broker/metrics/requests.py",
    "broker/network/server.py",
    "broker/partitions/local_partitions.py",
    "broker/runtime.py",
    "broker/coordinators/checkpoint_keeper.py",
    "broker/transactions/journal.py",
    "broker/transactions/timeouts.py",
    "broker/transactions/ending.py",
    "broker/transactions/first_writes.py",
    "broker/transactions/arriving_markers.py",
    "broker/transactions/partition.py",
    "broker/transactions/coordinator.py",
    "broker/turns.py",
    "broker/waiting.py",
    "broker/handlers/add_partitions_to_txn.py",
    "broker/handlers/end_txn.py",
    "broker/handlers/produce.py",
    "broker/handlers/write_txn_markers.py",
    "broker/peers.py",
    "client/partitioner.py",
    "cluster/link.py",
    "cluster/peers.py",
)


def why_not() -> str | None:
    """What is missing for compiling; None if nothing is."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler here ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers are not installed (Python.h)"
    return None


def compile_hot_path(target: Path = TARGET) -> Path:
    """The folder with a compiled fencepost, built again only if a source has changed."""
    made_from = _fingerprint()
    stamp = target / STAMP
    if stamp.exists() and stamp.read_text() == made_from:
        return target
    shutil.rmtree(target, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for package in sorted(SOURCE.iterdir()):
        if (package / "__init__.py").exists():
            shutil.copytree(package, target / package.name, ignore=ignored)
    modules = [f"fencepost/{module}" for module in HOT_PATH]
    _say(
        f"compiling {len(modules)} modules with mypyc and the C compiler, which takes a minute "
        "or more"
    )
    output = _run_and_say(
        [
            sys.executable,
            "-m",
            "mypyc",
            "--strict",
            "--ignore-missing-imports",  # Of libraries without types that other modules import.
            "--config-file=",
            *modules,
        ],
        folder=target,
        # Its own sources, not those installed in the environment.
        environment={**os.environ, "MYPYPATH": str(target), "MYPYC_OPT_LEVEL": "3"},
    )
    if output is not None:
        raise SystemExit(f"mypyc could not compile the hot path:\n{output}")
    shutil.rmtree(target / "build", ignore_errors=True)
    shutil.rmtree(target / ".mypy_cache", ignore_errors=True)
    stamp.write_text(made_from)
    return target


def _run_and_say(command: list[str], *, folder: Path, environment: dict[str, str]) -> str | None:
    """Runs a long command and reports now and then that it is running; its output if it failed."""
    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        while True:
            try:
                output, _ = running.communicate(timeout=SAY_SECONDS)
            except subprocess.TimeoutExpired:
                _say(f"still compiling, {time.monotonic() - began:.0f} s")
            else:
                return output if running.returncode else None


def _say(sentence: str) -> None:
    # Standard output is for the folder, which the Makefile reads.
    print(f"  {sentence}", file=sys.stderr, flush=True)


def _fingerprint() -> str:
    # Where a folder is shared, another machine or C library needs other modules.
    built_for = f"{sys.version}{sysconfig.get_platform()}{sysconfig.get_config_var('EXT_SUFFIX')}"
    digest = hashlib.sha256(f"{built_for}{HOT_PATH}".encode())
    for path in sorted(SOURCE.rglob("*.py")):
        digest.update(path.relative_to(SOURCE).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.compile_hot_path", description=__doc__)
    parser.add_argument(
        "--or-source",
        action="store_true",
        help="where nothing can be compiled, print the folder of the sources instead of failing",
    )
    parser.add_argument(
        "--why-not",
        action="store_true",
        help="compile nothing: say what is missing here for it, and fail when nothing is",
    )
    wanted = parser.parse_args()
    missing = why_not()
    if wanted.why_not:
        if missing is None:
            sys.exit(1)
        print(missing)
    elif missing is None:
        print(compile_hot_path())
    elif wanted.or_source:
        print(f"fencepost runs interpreted: {missing}.", file=sys.stderr)
        print(SOURCE)
    else:
        sys.exit(
            f"The hot path cannot be compiled: {missing}. fencepost runs without, only slower."
        )


if __name__ == "__main__":
    main()

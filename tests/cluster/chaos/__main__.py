"""`make chaos`: a run with many faults, and the command that repeats it."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.cluster.chaos.copier import CLIENTS
from tests.cluster.chaos.run import run_chaos


def main() -> int:
    """Runs a schedule, prints it as it happens, and reports."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--clients", default=",".join(CLIENTS), help="which copiers to run")
    parser.add_argument("--keep", action="store_true", help="keep logs and data in any case")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(
        f"seed {seed}: the same schedule again with make chaos SEED={seed} FAULTS={options.faults}"
    )
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} {line}", flush=True)

    clients = tuple(options.clients.split(","))
    report = run_chaos(seed, options.faults, say=say, clients=clients, keep=options.keep)
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())

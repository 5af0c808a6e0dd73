"""`make histories`: random histories with seeds from the date, for a time; stops at a failure."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings

from tests.broker.histories.seeds import replay_command
from tests.broker.histories.small import make_small
from tests.broker.histories.world import History


def main() -> int:
    """Runs histories until the time is over or one breaks a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.histories", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first one")
    parser.add_argument("--go-on", action="store_true", help="do not stop at a failure")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore", ResourceWarning)  # A failed history leaves its loop open.
    make_small(setattr)
    print(f"seeds from {options.seed} on, for {options.seconds:g} s", flush=True)
    began, failed, seed = time.monotonic(), 0, options.seed
    while time.monotonic() - began < options.seconds:
        failed += not _keeps_every_promise(seed)
        seed += 1
        if failed and not options.go_on:
            break
    print(f"{seed - options.seed} histories in {time.monotonic() - began:.0f} s, {failed} failed")
    return 1 if failed else 0


def _keeps_every_promise(seed: int) -> bool:
    history = History(seed)
    try:
        history.run()
    except Exception as problem:  # noqa: BLE001 - any failure is one of the history.
        print(f"seed {seed} failed: {problem!r}")
        print("\n".join(f"  {event}" for event in history.events[-30:]))
        print(f"Replay: {replay_command(seed)}", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())

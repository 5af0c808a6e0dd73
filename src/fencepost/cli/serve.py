"""`fencepost serve`: the broker as a process."""

from __future__ import annotations

import argparse
import logging
import sys

from fencepost.base.failures import FencepostError

DESCRIPTION = """\
Run the broker. It prints one line, "fencepost is ready at HOST:PORT", when it serves;
Ctrl-C or SIGTERM stop it cleanly.

examples:
  fencepost serve
  fencepost serve --listen 127.0.0.1:0 --data /tmp/refunds --config num.partitions=4
  fencepost serve --durability fsync --config-file server.properties
"""


def parser() -> argparse.ArgumentParser:
    """The options of `serve`."""
    made = argparse.ArgumentParser(
        prog="fencepost serve",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="where to listen; port 0 picks a free one (default: 127.0.0.1:9092)",
    )
    made.add_argument(
        "--data", metavar="DIR", help="where topics are kept (default: ./fencepost-data)"
    )
    made.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a broker config by Kafka's name; may be given several times",
    )
    made.add_argument(
        "--config-file", metavar="FILE", help="broker configs in a Java properties file"
    )
    made.add_argument(
        "--durability",
        choices=("os", "fsync"),
        help="what an acknowledgement survives: os = kill -9 of the broker, as in Kafka; "
        "fsync = loss of power, one sync for all that wait (default: os)",
    )
    made.add_argument(
        "--allow-remote",
        action="store_true",
        help="allow an address that other machines can reach; there is no authentication yet",
    )
    made.add_argument(
        "--trace", metavar="FILE", help="write every request and reply to FILE as JSON lines"
    )
    made.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="how much to say on standard error (default: info)",
    )
    return made


def serve(arguments: list[str]) -> int:
    """Runs until it is stopped; the exit code."""
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    from fencepost.broker.process import run

    try:
        return run(
            listen=options.listen,
            data=options.data,
            settings=options.config,
            settings_file=options.config_file,
            durability=options.durability,
            allow_remote=options.allow_remote,
            trace_file=options.trace,
            announce=_announce,
        )
    except FencepostError as problem:
        print(f"fencepost: {problem}", file=sys.stderr)
        return 2


def _announce(address: str) -> None:
    print(f"fencepost is ready at {address}", flush=True)

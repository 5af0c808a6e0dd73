"""`fencepost serve`: runs the broker."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import NoReturn

from fencepost.cli.main import CALLED_WRONGLY, complain_of_usage

DESCRIPTION = """\
  Run the broker.

  It prints "fencepost is ready at HOST:PORT" when it accepts connections; with --brokers,
  the addresses of all brokers, separated by commas.
  Ctrl-C or SIGTERM stops it cleanly.

  fencepost serve
  fencepost serve --listen 127.0.0.1:0 --data /tmp/refunds --config num.partitions=4
  fencepost serve --brokers 3
  fencepost serve --durability fsync --config-file server.properties
  fencepost serve --metrics 127.0.0.1:9400 --log-format json
"""


class Layout(argparse.HelpFormatter):
    """Formats the help as the other commands do."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _format_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None,
    ) -> str:
        return f"Usage: {self._prog} [OPTIONS]\n\n"

    def _format_text(self, text: str) -> str:
        return f"{text}\n"


class Parser(argparse.ArgumentParser):
    """Reports usage errors as the other commands do."""

    def error(self, message: str) -> NoReturn:
        complain_of_usage(message, self.prog)
        sys.exit(CALLED_WRONGLY)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of `serve`."""
    made = Parser(
        prog="fencepost serve",
        description=DESCRIPTION,
        formatter_class=Layout,
        allow_abbrev=False,
        add_help=False,
    )
    options = made.add_argument_group("Options")
    options.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="Where to listen; port 0 chooses a free one. [default: 127.0.0.1:9092]",
    )
    options.add_argument(
        "--brokers",
        type=int,
        metavar="N",
        help="Run N broker processes on consecutive ports over one data directory.",
    )
    # For `fencepost.Cluster`: the cluster ends with its program, and keeps its ports.
    options.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)
    options.add_argument("--last-ports", type=_ports, default=[], help=argparse.SUPPRESS)
    options.add_argument(
        "--data", metavar="DIR", help="The data directory. [default: ./fencepost-data]"
    )
    options.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="A broker setting by Kafka's name; may be repeated.",
    )
    options.add_argument(
        "--config-file",
        metavar="FILE",
        help="A Java properties file with broker settings, such as Kafka's server.properties.",
    )
    options.add_argument(
        "--durability",
        choices=("os", "fsync"),
        metavar="MODE",
        help="What an acknowledgement survives: os = kill -9 of the broker, as in Kafka; "
        "fsync = a loss of power, with one sync for all waiting requests. [default: os]",
    )
    options.add_argument(
        "--allow-remote",
        action="store_true",
        help="Allow an address that other machines can reach. There is no authentication.",
    )
    options.add_argument(
        "--trace", metavar="FILE", help="Write every request and reply to FILE as JSON lines."
    )
    options.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        metavar="LEVEL",
        default="info",
        help="What is logged to standard error: debug, info, warning or error. [default: info]",
    )
    options.add_argument(
        "--log-format",
        choices=("text", "json"),
        metavar="FORMAT",
        default="text",
        help="The log as lines for people (text), or as one JSON object per line (json). "
        "[default: text]",
    )
    options.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve Prometheus metrics, /healthz and /readyz; port 0 chooses a free one. With "
        "--brokers, broker K is at PORT + K. [default: off]",
    )
    options.add_argument("-h", "--help", action="help", help="Show this message and exit.")
    return made


def _ports(text: str) -> list[int]:
    return [int(port) for port in text.split(",")]


def serve(arguments: list[str]) -> int:
    """Runs the broker until it is stopped, and returns the exit code."""
    options = parser().parse_args(arguments)
    # Here, so that completing the options of `serve` does not load the broker.
    from fencepost.broker.log_format import set_up_log

    set_up_log(options.log_format, level=options.log_level.upper())
    if options.brokers is not None:
        from fencepost.cluster.parent.serve import run as run_cluster

        return run_cluster(
            brokers=options.brokers,
            listen=options.listen,
            data=options.data,
            settings=options.config,
            settings_file=options.config_file,
            durability=options.durability,
            allow_remote=options.allow_remote,
            trace_file=options.trace,
            metrics=options.metrics,
            log_format=options.log_format,
            lifeline=options.lifeline,
            last_ports=options.last_ports,
            announce=_announce,
        )
    from fencepost.broker.process import run

    return run(
        listen=options.listen,
        data=options.data,
        settings=options.config,
        settings_file=options.config_file,
        durability=options.durability,
        allow_remote=options.allow_remote,
        trace_file=options.trace,
        metrics=options.metrics,
        announce=_announce,
    )


def _announce(address: str) -> None:
    print(f"fencepost is ready at {address}", flush=True)

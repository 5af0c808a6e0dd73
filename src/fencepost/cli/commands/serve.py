"""`fencepost serve`: runs the broker."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from fencepost.base.failures import FencepostError
from fencepost.cli.main import USAGE_ERROR, complain_of_usage

if TYPE_CHECKING:
    from fencepost.broker.security.first_administrator import Administrator

_SECRET_WORDS: Final = ("password", "secret", "jaas", "keystore.key")
"""Parts of the names of settings whose values are secrets."""

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
  fencepost serve --test --listen 127.0.0.1:0
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

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.listed: list[argparse.Action] = []
        """The options that help, completion and documentation show."""
        self._option_group = self.add_argument_group("Options")

    def add_option(self, *names: str, **more: Any) -> None:
        """Adds an option; one without a help text is not listed."""
        if "help" in more:
            self.listed.append(self._option_group.add_argument(*names, **more))
        else:
            self._option_group.add_argument(*names, help=argparse.SUPPRESS, **more)

    def error(self, message: str) -> NoReturn:
        complain_of_usage(message, self.prog)
        sys.exit(USAGE_ERROR)


def parser() -> Parser:
    """Returns the parser of `serve`."""
    made = Parser(
        prog="fencepost serve",
        description=DESCRIPTION,
        formatter_class=Layout,
        allow_abbrev=False,
        add_help=False,
    )
    made.add_option(
        "--listen",
        metavar="HOST:PORT",
        help="Where to listen; port 0 chooses a free one. [default: 127.0.0.1:9092]",
    )
    made.add_option(
        "--brokers",
        type=int,
        metavar="N",
        help="Run N broker processes on consecutive ports over one data directory.",
    )
    # For `fencepost.Cluster`: the cluster ends with its program, and keeps its ports.
    made.add_option("--lifeline", type=int)
    made.add_option("--last-ports", type=_ports, default=[])
    made.add_option("--data", metavar="DIR", help="The data directory. [default: ./fencepost-data]")
    made.add_option(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="A broker setting by Kafka's name; may be repeated.",
    )
    made.add_option(
        "--config-file",
        metavar="FILE",
        help="A Java properties file with broker settings, such as Kafka's server.properties.",
    )
    made.add_option(
        "--durability",
        choices=("os", "fsync"),
        metavar="MODE",
        help="What an acknowledgement survives: os = kill -9 of the broker, as in Kafka; "
        "fsync = a power loss, with one sync for all waiting requests. [default: os]",
    )
    made.add_option(
        "--allow-remote",
        action="store_true",
        help="Allow an address that other machines can reach, without TLS and authentication.",
    )
    made.add_option(
        "--trace", metavar="FILE", help="Write every request and reply to FILE as JSON lines."
    )
    made.add_option(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        metavar="LEVEL",
        default="info",
        help="What is logged to standard error: debug, info, warning or error. [default: info]",
    )
    made.add_option(
        "--log-format",
        choices=("text", "json"),
        metavar="FORMAT",
        default="text",
        help="The log as lines for people (text), or as one JSON object per line (json). "
        "[default: text]",
    )
    made.add_option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve Prometheus metrics, /healthz and /readyz; port 0 chooses a free one. With "
        "--brokers, broker K is at PORT + K. [default: off]",
    )
    made.add_option(
        "--test",
        action="store_true",
        help="Serve tests in any language: faults, time and committed records over HTTP on "
        "127.0.0.1, with a token. Prints where. Without --data, the data are temporary.",
    )
    made.add_option(
        "--init-admin",
        metavar="NAME",
        help="Create this user before anybody is served, if there is no such user. Its password "
        "comes from --init-admin-password.",
    )
    made.add_option(
        "--init-admin-password",
        metavar="FILE",
        help="The password is the first line of FILE; - for standard input.",
    )
    made.add_option("-h", "--help", action="help", help="Show this message and exit.")
    return made


def _ports(text: str) -> list[int]:
    return [int(port) for port in text.split(",")]


def serve(arguments: list[str]) -> int:
    """Runs the broker until it is stopped, and returns the exit code."""
    options = parser().parse_args(arguments)
    _refuse_secrets(options.config)
    # Here, so that completing the options of `serve` does not load the broker.
    from fencepost.broker.log_format import set_up_log

    set_up_log(options.log_format, level=options.log_level.upper())
    if options.test:
        return _serve_tests(options)
    common = {
        "listen": options.listen,
        "data": options.data,
        "settings": options.config,
        "settings_file": options.config_file,
        "durability": options.durability,
        "allow_remote": options.allow_remote,
        "trace_file": options.trace,
        "metrics": options.metrics,
        "announce": _announce,
        "administrator": _administrator(options.init_admin, options.init_admin_password),
    }
    if options.brokers is not None:
        from fencepost.cluster.parent.serve import run as run_cluster

        return run_cluster(
            brokers=options.brokers,
            log_format=options.log_format,
            lifeline=options.lifeline,
            last_ports=options.last_ports,
            **common,
        )
    from fencepost.broker.process import run

    return run(**common)


_NOT_IN_TESTS: Final = (
    "brokers", "config_file", "allow_remote", "init_admin", "init_admin_password"
)  # fmt: skip


def _serve_tests(options: argparse.Namespace) -> int:
    for name in _NOT_IN_TESTS:
        if getattr(options, name) not in (None, False):
            option = "--" + name.replace("_", "-")
            raise FencepostError(
                f"--test does not go with {option}: it runs one broker for tests on this machine, "
                "with settings from --config."
            )
    from fencepost.testing.serving import run

    return run(
        listen=options.listen,
        data=options.data,
        settings=options.config,
        durability=options.durability,
        trace_file=options.trace,
        metrics=options.metrics,
        announce=_announce,
        announce_control=_announce_control,
    )


def _administrator(user: str | None, password_file: str | None) -> Administrator | None:
    """The user to create; FencepostError if one of the two options is missing."""
    if user is None and password_file is None:
        return None
    if not user or not password_file:
        raise FencepostError(
            "--init-admin NAME and --init-admin-password FILE belong together; FILE may be - for "
            "standard input."
        )
    from fencepost.broker.security.first_administrator import Administrator
    from fencepost.cli.passwords import read_password

    return Administrator(user, read_password(password_file, user))


def _refuse_secrets(settings: Sequence[str]) -> None:
    """Refuses passwords in arguments, which every user of the machine can see."""
    for assignment in settings:
        name, separator, value = assignment.partition("=")
        if separator and value and any(word in name.lower() for word in _SECRET_WORDS):
            raise FencepostError(
                f"{name.strip()} is a secret: put it into a properties file, with --config-file. "
                "Every user of this machine can see the arguments of a process."
            )


def _announce(address: str) -> None:
    print(f"fencepost is ready at {address}", flush=True)


def _announce_control(url: str, token_file: str) -> None:
    print(f"fencepost test control is at {url}, with the token in {token_file}", flush=True)

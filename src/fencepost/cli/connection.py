"""The connection of a command to a cluster, and its options."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from fencepost.base.failures import FencepostError
from fencepost.base.options import refuse_secret_argument
from fencepost.base.properties import read_properties

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster

HOME: Final = "127.0.0.1:9092"
"""Where `fencepost serve` listens by default."""
SERVERS_VARIABLE: Final = "FENCEPOST_BOOTSTRAP_SERVERS"
"""Names the cluster of all commands, unless an option or a file names another one."""
SERVERS_NAMES: Final = ("--bootstrap-servers", "-b")
DEFAULT_PORT: Final = 9092

AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
_Servers = Annotated[
    str | None,
    typer.Option(
        *SERVERS_NAMES,
        help=f"The brokers of the cluster.  [env var: {SERVERS_VARIABLE}; default: {HOME}]",
        metavar="HOST:PORT,...",
    ),
]
_ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A Java properties file with client settings, such as security.",
    ),
]
_ClientConfig = Annotated[
    list[str],
    typer.Option("--client-config", metavar="KEY=VALUE", help="A client setting by Kafka's name."),
]

PATIENCE_MS: Final = 10_000
"""A user is waiting at the terminal; Kafka's clients would retry for a minute."""

DEFAULTS: Final = {"client.id": "fencepost-cli", "default.api.timeout.ms": str(PATIENCE_MS)}
"""Client settings of all commands, unless the user has others."""
LOOK_MS: Final = 2_500
"""How long a broker may take to answer a command that only looks."""

_SILENCE_SECONDS: Final = 1.0
"""After this time without an answer, a line says which brokers the command is waiting for."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the cluster of a command is, and the client settings; nothing is sent before `open`."""

    servers: str
    options: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    """The options that name the cluster, for a command to copy. Settings given one by one are not
    among them: they may hold a password."""

    @contextmanager
    def open(self, servers: str | None = None, *, long_running: bool = False) -> Iterator[Cluster]:
        """Yields a client, of other brokers if they are named.

        Uses the first broker that answers, and fails at once if none accepts a connection. A
        command that is `long_running` is not reported as waiting for an answer.
        """
        from fencepost.client.blocking import connect

        servers = servers or self.servers
        waiting = nullcontext() if long_running else _reporting_a_wait(servers)
        with connect(servers, self.options) as cluster, waiting:
            _reach(cluster)
            yield cluster

    def with_defaults(self, **options: str) -> Connection:
        """Returns the same with client settings (`_` for `.`) for those that the user left open.

        The defaults of all commands are for someone who waits at a terminal.
        """
        named = {name.replace("_", "."): value for name, value in options.items()}
        kept = {k: v for k, v in self.options.items() if DEFAULTS.get(k) != v or k not in named}
        return Connection(self.servers, named | kept, self.arguments)

    def named(self, client_id: str) -> Connection:
        """Returns the same with a client id that the brokers know, whatever the user has set."""
        return Connection(self.servers, {**self.options, "client.id": client_id}, self.arguments)

    @contextmanager
    def look(self) -> Iterator[Cluster]:
        """Yields a client for a command that only looks.

        A broker that does not answer in time is given up, and another one is asked: a request that
        changes nothing can be repeated.
        """
        with self.with_defaults(request_timeout_ms=str(LOOK_MS)).open() as cluster:
            yield cluster


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Turns a function of a Connection into a command with the options of a connection."""

    @wraps(command)
    def run(**options: Any) -> None:
        _require_text(options)
        connection = read_connection(*(options.pop(each.name) for each in shared))
        command(connection, **options)

    # Typer builds the options from the signature.
    hints = get_type_hints(command, include_extras=True)
    _, *own = inspect.signature(command).parameters.values()
    shared = list(inspect.signature(connection_options).parameters.values())
    hints |= get_type_hints(connection_options, include_extras=True)
    parameters = [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in (*own, *shared)
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _require_text(options: Mapping[str, Any]) -> None:
    """Refuses arguments that are not UTF-8, which no request can carry."""
    for value in options.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not text.isprintable():
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise FencepostError(f"The argument {text!r} is not UTF-8 text.") from None


def connection_options(
    bootstrap_servers: _Servers = None,
    config_file: _ConfigFile = None,
    client_config: _ClientConfig = [],  # noqa: B006 - typer copies it
) -> None:
    """The options that `connected` adds to a command."""


def read_connection(
    servers: str | None, config_file: str | None, client_config: list[str]
) -> Connection:
    """Reads the options of a connection; the command line wins over the file.

    The file may name the brokers too (bootstrap.servers), and wins over the environment: it was
    named for this command.
    """
    options = dict(DEFAULTS)
    if config_file is not None:
        options |= _read_file(config_file)
    for assignment in client_config:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise FencepostError(f"{assignment!r} is not a setting: write name=value.")
        refuse_secret_argument(name.strip(), "--config")
        options[name.strip()] = value.strip()
    named = options.pop("bootstrap.servers", None)
    arguments: tuple[str, ...] = ("--bootstrap-servers", servers) if servers else ()
    if config_file is not None:
        arguments += ("--config", config_file)
    if servers is not None and not servers.strip(" ,"):
        # A variable that is not set: the default would be another cluster than the user means.
        raise FencepostError("--bootstrap-servers is empty: name a broker, such as localhost:9092.")
    found = servers or named or os.environ.get(SERVERS_VARIABLE) or HOME
    _require_text({SERVERS_VARIABLE: found})
    return Connection(with_ports(found), options, arguments)


def with_ports(servers: str) -> str:
    """Returns the servers, with Kafka's port for those that have none."""
    return ",".join(_with_port(each.strip()) for each in servers.split(","))


def _with_port(server: str) -> str:
    is_ipv6_without_port = server.endswith("]")
    if server and (":" not in server or is_ipv6_without_port):
        return f"{server}:{DEFAULT_PORT}"
    return server


def _read_file(path: str) -> dict[str, str]:
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        hint = " Settings of a topic are given with --set NAME=VALUE." if "=" in path else ""
        raise FencepostError(
            f"The file of --config {path} cannot be read: {reason}.{hint}"
        ) from problem
    return read_properties(text)


def _reach(cluster: Cluster) -> None:
    """Finds a server that answers: the client itself would retry until its deadline."""
    from fencepost.client.failures import NoBrokerAnswers

    try:
        cluster.reach()
    except NoBrokerAnswers as problem:
        if problem.accepts:
            raise FencepostError(
                f"{problem}. If it is a broker with TLS or passwords, name a file with its client "
                "settings: --config FILE (docs/guide/security.md). If it is none, correct "
                "--bootstrap-servers."
            ) from problem
        raise FencepostError(
            f"{problem}. Start one with `fencepost serve`, or name one with --bootstrap-servers "
            f"HOST:PORT or {SERVERS_VARIABLE}."
        ) from problem


@contextmanager
def _reporting_a_wait(servers: str) -> Iterator[None]:
    def say() -> None:
        print(f"fencepost: waiting for an answer from {servers} ...", file=sys.stderr, flush=True)

    timer = threading.Timer(_SILENCE_SECONDS, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

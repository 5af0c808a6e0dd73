"""`fencepost tap` and `fencepost tap show`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.cli.connection import (
    SERVERS_NAMES,
    SERVERS_VARIABLE,
    AsJson,
    read_connection,
)
from fencepost.cli.layout import App
from fencepost.cli.main import complain
from fencepost.cli.output import output
from fencepost.cli.units import size_for_people

if TYPE_CHECKING:
    from fencepost.client.options import Endpoint
    from fencepost.forensics.tap.proxy import TapOptions
    from fencepost.forensics.tap.sinks import Sink
    from fencepost.forensics.tap.swimlane.story import Story

HOME: Final = "127.0.0.1:9193"

app = App(invoke_without_command=True)


@app.callback()
def tap(
    context: typer.Context,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where clients connect to; port 0 for a free one."),
    ] = HOME,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            *SERVERS_NAMES,
            metavar="HOST:PORT,...",
            help=f"The brokers of the cluster.  [env var: {SERVERS_VARIABLE}]",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write JSON lines to FILE, which is replaced."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines on standard output instead of a table.")
    ] = False,
    config_file: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="A Java properties file with the TLS settings of the cluster.",
        ),
    ] = None,
    keeps_bytes: Annotated[
        bool,
        typer.Option(
            "--bytes",
            help="Keep the first 2 KB of each request of a transaction, without records; "
            "`tap show --hex N` shows them.",
        ),
    ] = False,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Allow --listen beyond this machine.")
    ] = False,
) -> None:
    """Show what clients and brokers say to each other: a proxy that decodes every request.

    Point the clients at --listen. Each broker gets a local port, and replies name those. Records
    are never shown, nor are logins, which pass through.

    Example: fencepost tap --to localhost:9092 --out trace.jsonl
    """
    if context.invoked_subcommand is not None:
        return
    to = to or os.environ.get(SERVERS_VARIABLE)
    if not to:
        raise typer.BadParameter("name a broker of the cluster with --to HOST:PORT", ctx=context)
    options = _read_options(listen, to, config_file, allow_remote, keeps_bytes)
    from fencepost.forensics.tap.run import run_tap

    sinks = _sinks(out, as_json)
    counts = run_tap(options, sinks, _announce)
    complain(_summary(counts))


def _read_options(
    listen: str, to: str, config_file: str | None, allow_remote: bool, keeps_bytes: bool
) -> TapOptions:
    from fencepost.client.options import parse_bootstrap, read_options
    from fencepost.client.tls import tls_context
    from fencepost.forensics.tap.proxy import TapOptions

    given = dict(read_connection(to, config_file, []).options)
    # Logins pass through, so the tap needs no credentials.
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    given["security.protocol"] = {"SASL_SSL": "SSL", "SASL_PLAINTEXT": "PLAINTEXT"}.get(
        protocol, protocol
    )
    client = read_options(
        to, {name: value for name, value in given.items() if not name.startswith("sasl.")}
    )
    return TapOptions(
        listen=_parse_listen(listen, allow_remote),
        to=parse_bootstrap(to),
        tls=None if client.tls is None else tls_context(client.tls),
        keeps_bytes=keeps_bytes,
    )


def _parse_listen(text: str, allow_remote: bool) -> Endpoint:
    from fencepost.broker.settings.listener import is_loopback
    from fencepost.client.options import Endpoint

    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen is {text!r}: write HOST:PORT, such as {HOME}.")
    if not allow_remote and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, and the tap lets anyone through to the "
            "cluster. Listen on 127.0.0.1 or [::1], or add --allow-remote if the network is yours."
        )
    return Endpoint(host, int(port))


def _sinks(out: str | None, as_json: bool) -> list[Sink]:
    from fencepost.forensics.tap.sinks import FileSink, OutputSink, lost_as_json
    from fencepost.forensics.tap.table import Table, lost_as_row
    from fencepost.records.trace import as_text

    sinks: list[Sink] = []
    if out is not None:
        sinks.append(FileSink(out, complain))
    is_terminal = sys.stdout.isatty()
    if as_json or (out is None and not is_terminal):
        sinks.append(OutputSink(as_text, lost_as_json, sys.stdout.fileno()))
    elif is_terminal:
        table = Table(shutil.get_terminal_size().columns, colour="NO_COLOR" not in os.environ)
        print(table.heading(), end="", flush=True)
        sinks.append(OutputSink(table.row, lost_as_row, sys.stdout.fileno()))
    return sinks


def _announce(local: Endpoint, broker: Endpoint, node_id: int | None) -> None:
    which = f"broker {node_id} ({broker})" if node_id is not None else str(broker)
    complain(f"{local} leads to {which}")


def _summary(counts: dict[str, Any]) -> str:
    errors = ", ".join(f"{name} {count}" for name, count in counts["errors"].items())
    return (
        f"{counts['requests']} requests on {counts['connections']} connections, "
        f"{size_for_people(counts['request_bytes'])} to brokers and "
        f"{size_for_people(counts['reply_bytes'])} to clients; "
        f"errors: {errors or 'none'}"
    )


@app.command("show", short_help="Draw the requests of a transactional id from a trace.")
def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `tap --out` wrote.")],
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="Which transactional id, if the trace has several.",
            show_default=False,
        ),
    ] = None,
    transactional_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The same."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="HH:MM:SS[.ffffff] or ISO 8601, UTC."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="The same.")] = None,
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Draw a picture into FILE.")
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            "--hex",
            metavar="N",
            help="Show the bytes of request N instead, from a trace of `tap --bytes`.",
        ),
    ] = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            *SERVERS_NAMES, metavar="HOST:PORT,...", help="Read the markers from this cluster."
        ),
    ] = None,
    config_file: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="FILE", help="A Java properties file with client settings."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw who said what to whom: producer, coordinator and leaders as lanes.

    Below it: what was in flight when the producer was fenced or the trace ended, since when, and
    how old its transaction was. Markers between brokers pass no proxy; they are inferred (~), or
    read from the partitions if --bootstrap-servers is given. Works on the traces of `fencepost
    serve --trace` too.

    Example: fencepost tap show trace.jsonl refunds-1 --svg refunds.svg
    """
    from fencepost.forensics.tap.swimlane import show as showing

    if named is not None and transactional_id not in (None, named):
        raise FencepostError(f"Two ids are named, {named!r} and {transactional_id!r}: name one.")
    transactional_id = named if transactional_id is None else transactional_id
    trace = showing.read(file, start, end)
    if transactional_id is None:
        found = showing.ids(trace)
        if len(found) != 1:
            _list_ids(found, as_json)
            return
        transactional_id = found[0]["transactional_id"]
    story = showing.story(trace, transactional_id)
    if not story.shown_calls:
        raise FencepostError(
            f"{file} has no request of the transactional id {transactional_id!r} in this time. "
            f"`fencepost tap show {file}` lists those that it has."
        )
    if number is not None:
        _show_bytes(story, number, as_json)
        return
    if bootstrap_servers is not None:
        with read_connection(bootstrap_servers, config_file, []).open() as cluster:
            story.markers = showing.markers(cluster, story)
    if svg is not None:
        _write(svg, showing.picture(story))
    if as_json:
        output(True).details(showing.as_row(story))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
    for line in showing.drawing(story, width):
        print(line)


def _show_bytes(story: Story, number: int, as_json: bool) -> None:
    from fencepost.forensics.tap.swimlane.hex_dump import dump, find_request, request_row

    call = find_request(story, number)
    if as_json:
        output(True).details(request_row(call))
        return
    for line in dump(call):
        print(line)


def _list_ids(rows: list[dict[str, Any]], as_json: bool) -> None:
    out = output(as_json)
    columns = ("transactional_id", "requests", "first_at_ms", "last_at_ms", "errors")
    out.table(rows, columns, "No request of the trace names a transactional id.")
    if rows:
        out.note("Choose one: fencepost tap show FILE ID.")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as problem:
        raise FencepostError(f"Cannot write to {path}: {problem.strerror}.") from problem

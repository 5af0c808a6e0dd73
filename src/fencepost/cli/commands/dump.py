"""`fencepost dump`: log files without a broker."""

from __future__ import annotations

from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.base.failures import FencepostError
from fencepost.cli.commands import records as records_command
from fencepost.cli.connection import AsJson
from fencepost.cli.output import Column, Output, output

if TYPE_CHECKING:
    from collections.abc import Iterator


COLUMNS = {
    "batch": {
        "base_offset": Column(8, "first"),
        "last_offset": Column(8, "last"),
        "record_count": Column(7, "records", is_optional=True),
        "size_bytes": Column(8, "size", is_optional=True),
        "max_at_ms": Column(27, "newest record", is_optional=True),
        "fate": Column(17),
        "transaction": Column(11),
        "producer_id": Column(8, "producer"),
        "producer_epoch": Column(5, "epoch", is_optional=True),
        "base_sequence": Column(8, "sequence", is_optional=True),
        "codec": Column(6, is_optional=True),
        "what": Column(6, "marker"),
    },
    "record": records_command.COLUMNS,
}


def dump(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Log files, or folders of them.")
    ],
    records: Annotated[
        bool | None,
        typer.Option(
            "--records/--batches",
            help="Show the records of segments, or only batches. "
            "[default: records of internal topics]",
            show_default=False,
        ),
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Show values, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show log files of fencepost or Apache Kafka, without a broker.

    Segments with the fate of each batch, indexes, producer snapshots, checkpoints. A damaged file
    is shown up to the damage, and the exit code is 1. With --json a line per entry.

    Example: fencepost dump data/refunds-0
    """
    from fencepost.forensics.logs.log_files import DAMAGE, DumpOptions, dump_files, find_files

    found = find_files(files)
    options = DumpOptions(records or (True if values else records), values, batches=as_json)
    shown = output(as_json)
    damaged: list[str] = []

    def noted(path: Path, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            if row["kind"] == DAMAGE:
                damaged.append(f"{path} is damaged: {row['problem']}")
            yield {"file": str(path), **row}

    for file, rows in dump_files(found, options):
        if as_json:
            shown.listing(noted(file.path, rows), {})
            continue
        shown.note(f"\n{file.path}")
        for kind, part in groupby(noted(file.path, rows), key=lambda row: row["kind"]):
            _show(shown, kind, part)
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise FencepostError(
            f"{damaged[0]}{more}. `fencepost check` examines a whole directory, and `fencepost "
            "repair` removes damaged records."
        )


def _show(shown: Output, kind: str, rows: Iterator[dict[str, Any]]) -> None:
    first = next(rows)
    if kind == "damage":
        place = "" if first["position"] is None else f" at byte {first['position']}"
        shown.note(f"DAMAGE{place}: {first['problem']}")
        return
    columns = COLUMNS.get(kind) or {
        name: Column(27 if name.endswith("at_ms") else 8)
        for name in first
        if name not in ("file", "kind")
    }
    shown.listing(map(_in_text, chain([first], rows)), columns)


def _in_text(row: dict[str, Any]) -> dict[str, Any]:
    return records_command.in_text(row) if row["kind"] == "record" else row

"""`fencepost check DIR`: checks a stopped data directory for damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.base.failures import ConfigError
from fencepost.cli.connection import AsJson
from fencepost.cli.output import output
from fencepost.cli.progress import ProgressLine

if TYPE_CHECKING:
    from fencepost.broker.storage.directory_check import Finding

COLUMNS = ("kind", "file", "problem", "advice")


def check(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="The data directory of a broker.")
    ],
    as_json: AsJson = False,
) -> None:
    """Check a stopped data directory for damage.

    Reads every batch with its records, and every index, snapshot and checkpoint, and changes
    nothing. The exit code is 1 if anything is damaged. Notes are not damage: the next start handles
    them.

    Example: fencepost check ./fencepost-data
    """
    from fencepost.base.system import ReadOnlySystemDisk
    from fencepost.broker.storage.directory_check import DirectoryCheck
    from fencepost.broker.storage.directory_lock import refuse_used

    refuse_used(directory)
    progress = ProgressLine()

    def tell(what: str) -> None:
        progress.show(f"reading {what}")

    checked = DirectoryCheck(ReadOnlySystemDisk(), directory.rstrip("/") or "/", tell)
    try:
        found = list(checked.run())
    except OSError as problem:
        raise ConfigError(f"{directory} cannot be read: {problem}.") from problem
    finally:
        progress.clear()
    empty = (
        f"{directory} is sound: {checked.partitions} partitions, {checked.bytes_read:,} bytes read."
    )
    output(as_json).table([_row(each) for each in found], COLUMNS, empty, ["kind"])
    if any(each.is_damage for each in found):
        raise typer.Exit(1)


def _row(finding: Finding) -> dict[str, str]:
    kind = "damage" if finding.is_damage else "note"
    return {
        "kind": kind,
        "file": finding.file,
        "problem": finding.problem,
        "advice": finding.advice,
    }

"""`fencepost repair DIR PARTITION`: removes damaged records from a stopped data directory."""

from __future__ import annotations

from typing import Annotated

import typer

from fencepost.base.failures import ConfigError
from fencepost.cli.connection import AsJson
from fencepost.cli.output import output
from fencepost.cli.partitions import parse_partition

COLUMNS = ("outcome", "first_offset", "last_offset", "file")


def repair(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="The data directory of a stopped broker.")
    ],
    partitions: Annotated[
        list[str],
        typer.Argument(metavar="PARTITION", help="Such as refunds-0."),
    ],
    as_json: AsJson = False,
) -> None:
    """Remove damaged records from partitions of a stopped data directory.

    Use it if you have no copy to restore. Unreadable records are lost, and readers skip their
    offsets. The damaged files are kept beside the new ones as `.log.damaged`. For
    `__transaction_state` the next start also aborts every open transaction and fences the producers
    of that partition.

    Example: fencepost repair ./fencepost-data refunds-0
    """
    from fencepost.base.system import SystemDisk
    from fencepost.broker.storage.directory_lock import DirectoryLock, refuse_used
    from fencepost.broker.storage.repair import Repair

    refuse_used(directory)
    folder = directory.rstrip("/") or "/"
    lock = DirectoryLock(folder, advice="A repair needs to write to it.")
    try:
        # Check all of them before changing the first.
        repairs = [Repair(SystemDisk(), folder, parse_partition(name)) for name in partitions]
        done = [each for repair in repairs for each in repair.run()]
    except OSError as problem:
        raise ConfigError(
            f"{directory} could not be repaired: {problem}. Files that were not replaced are "
            "unchanged; try again."
        ) from problem
    finally:
        lock.release()
    rows = [
        {
            "outcome": "lost" if each.is_lost else "restored",
            "first_offset": each.first_offset,
            "last_offset": each.end_offset - 1,
            "file": each.file,
        }
        for each in done
    ]
    output(as_json).table(rows, COLUMNS, f"Nothing is damaged in {', '.join(partitions)}.")

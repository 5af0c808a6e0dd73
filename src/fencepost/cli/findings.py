"""How a command that looks for trouble ends.

It prints what it found and exits with 0. With --check it exits with 3 if there is trouble, and with
4 if it cannot tell whether there is. If brokers did not answer, it prints the rest, names them on
standard error and exits with 1, so that a script does not take half an answer for a good one;
trouble that was found comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.cli.main import CANNOT_TELL, FAILED, TROUBLE_FOUND, complain

if TYPE_CHECKING:
    from collections.abc import Mapping

OneTopic = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC", help="One topic; all by default.", show_default=False),
]
Check = Annotated[bool, typer.Option("--check", help="Exit with 3 if anything is found.")]


def conclude(
    missing: Mapping[int, str], *, found: bool | None = False, check: bool = False
) -> None:
    """Names the brokers that did not answer, and exits with the code that applies.

    `found` is None if the command cannot tell.
    """
    for reason in sorted(set(missing.values())):
        complain(f"{reason}. What it leads or coordinates is not shown; the rest is.")
    if check and found:
        raise typer.Exit(TROUBLE_FOUND)
    if missing:
        raise typer.Exit(FAILED)
    if check and found is None:
        raise typer.Exit(CANNOT_TELL)

"""Asks before a command changes something that cannot be undone."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import typer

from fencepost.base.failures import FencepostError

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def confirm(yes: bool, sentence: str, details: Iterable[str] = ()) -> None:
    """Says in one sentence what will happen, and asks; FencepostError unless the answer is yes.

    Details are lines that are shown before.
    """
    if yes:
        return
    for line in details:
        typer.echo(line, err=True)
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 1_000
    question = textwrap.fill(f"{sentence} Continue?", width, break_on_hyphens=False)
    if not _answer(question):
        raise FencepostError("Nothing was changed.")


def delete_each(kind: str, names: Sequence[str], delete: Callable[[str], object]) -> None:
    """Deletes one after the other; FencepostError says how many were deleted before one was not."""
    for deleted, name in enumerate(names):
        try:
            delete(name)
        except FencepostError as problem:
            raise FencepostError(
                f"{deleted} of {len(names)} {kind}s were deleted, then {name!r} was not: {problem}"
            ) from problem


def _answer(question: str) -> bool:
    try:
        if sys.stdin is not None:
            return typer.confirm(question, err=True)
        typer.echo(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise  # Ctrl-C.
        typer.echo(err=True)
    raise FencepostError(
        "Nothing was changed, as there was no answer; --yes goes on without a question."
    )

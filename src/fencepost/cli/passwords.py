"""Passwords for commands: from the terminal, a file, or standard input.

Never an argument: every user of a machine can see the arguments of a process, and shells keep them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fencepost.base.failures import FencepostError
from fencepost.client.secret import Secret

STANDARD_INPUT = "-"


def read_password(file: str | None, user: str) -> Secret:
    """The password of a user: from a file, or `-`; without one from the terminal, twice."""
    if file is None:
        return _ask(user)
    password = _read(file).partition("\n")[0].removesuffix("\r")
    if not password:
        raise FencepostError(f"The password file {file} has an empty first line.")
    return Secret(password)


def _read(file: str) -> str:
    try:
        if file == STANDARD_INPUT:
            return sys.stdin.readline()
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        raise FencepostError(f"The password file {file} cannot be read: {reason}.") from None


def _ask(user: str) -> Secret:
    if not sys.stdin.isatty():
        raise FencepostError(
            "There is no terminal to ask for a password: give --password-file FILE, or - for "
            "standard input."
        )
    from getpass import getpass

    password = getpass(f"Password of {user}: ")
    if not password:
        raise FencepostError("The password is empty. Nothing was changed.")
    if getpass("Again: ") != password:
        raise FencepostError("The two passwords differ. Nothing was changed.")
    return Secret(password)

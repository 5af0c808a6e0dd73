"""Temporary folders of brokers and clusters.

`close` deletes them. A program that stops its brokers and never closes them has them deleted when
the interpreter exits, by the process that has made them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Final

_made: Final[dict[str, int]] = {}
"""Those that are not deleted yet, each with its process."""


def make_folder(prefix: str) -> str:
    """Makes a folder that only this user can read."""
    folder = tempfile.mkdtemp(prefix=prefix)
    _made[folder] = os.getpid()
    return folder


def delete_folder(folder: str) -> None:
    """Deletes it with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    _made.pop(folder, None)


@atexit.register
def _delete_all() -> None:
    for folder, process_id in list(_made.items()):
        if process_id == os.getpid():
            delete_folder(folder)

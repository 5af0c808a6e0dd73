"""The identity of an unfinished batch, for an abort that gets no reports.

Spark plans a stream's write in one process of the driver's machine and aborts it in another. If the
query is stopped in the middle of a batch, the abort gets no report of any task, and so nothing that
says which producer wrote. The transaction would stay open until its timeout, and readers of
committed data would wait that long. A fresh fence would end it too, but it might hit a successor
that has taken over the id. So the planning process leaves producer id and epoch in a file, and the
abort ends exactly that transaction: brokers refuse the identity if it is no longer the current one.

The file is only a hint. If it is missing, the transaction ends with its timeout, or with the next
start of the query.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import tempfile
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

from fencepost.client.transactions import ProducerIdentity

if TYPE_CHECKING:
    from fencepost.spark.format.options import WriteOptions

log = logging.getLogger(__name__)


def remember_identity(options: WriteOptions, identity: ProducerIdentity) -> None:
    """Stores the identity of the batch that begins."""
    path = _path(options)
    try:
        _make_folder(path.parent)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(astuple(identity)), "utf-8")
        unfinished.replace(path)
    except OSError as problem:
        log.info("the identity of the batch cannot be stored at %s: %s", path, problem)


def recall_identity(options: WriteOptions) -> ProducerIdentity | None:
    """The identity of the batch that was planned last; None if it is not known."""
    try:
        _make_folder(_path(options).parent)
        return ProducerIdentity(*json.loads(_path(options).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as problem:
        log.info("the identity of the batch is not known: %s", problem)
        return None


def forget_identity(options: WriteOptions) -> None:
    """Removes the file, once the batch is over."""
    try:
        _path(options).unlink(missing_ok=True)
    except OSError as problem:
        log.info("%s", problem)


def _path(options: WriteOptions) -> Path:
    servers = ",".join(map(str, options.settings.client.bootstrap))
    query = (servers, options.transactional_id, options.checkpoint, options.query_name)
    name = hashlib.sha256(json.dumps(query).encode("utf-8")).hexdigest()[:32]
    return Path(tempfile.gettempdir()) / f"fencepost-{os.getuid()}" / f"{name}.json"


def _make_folder(folder: Path) -> None:
    """A folder that only this user can write to; OSError if it belongs to another one."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OSError(f"{folder} is not a folder of this user alone")

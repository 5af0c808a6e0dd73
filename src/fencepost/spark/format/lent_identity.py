"""The identity of an unfinished batch, for an abort that gets no reports.

Spark plans a stream's write in one process of the driver's machine and aborts it in another. If the
query is stopped in the middle of a batch, the abort gets no report of any task, and so nothing that
says which producer wrote. The transaction would stay open until its timeout, and readers of
committed data would wait that long. A fresh fence would end it too, but it might hit a successor
that has taken over the id. So the planning process leaves producer id and epoch in a file, and the
abort ends exactly that transaction: brokers refuse the identity if it is no longer the current one.

The file is in the folder of the application's files (`SparkFiles`), which Spark tells both
processes, and deletes when the application ends. It is only a hint: without it the transaction ends
with its timeout, or with the next start of the query.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
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
    if path is None:
        return
    try:
        # Replaced at once: another process may read it now.
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(astuple(identity)), "utf-8")
        fresh.replace(path)
    except OSError as problem:
        log.info("the identity of the batch cannot be stored: %s", problem)


def recall_identity(options: WriteOptions) -> ProducerIdentity | None:
    """The identity of the batch that was planned last; None if it is not known."""
    path = _path(options)
    if path is None:
        return None
    try:
        return ProducerIdentity(*json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as problem:
        log.info("the identity of the batch is not known: %s", problem)
        return None


def forget_identity(options: WriteOptions) -> None:
    """Removes the file, once the batch is over."""
    path = _path(options)
    if path is None:
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as problem:
        log.info("%s", problem)


def _path(options: WriteOptions) -> Path | None:
    """The file of this query; None outside of the processes that Spark starts."""
    from pyspark import SparkFiles

    if not SparkFiles._is_running_on_worker:  # noqa: SLF001
        return None
    servers = ",".join(map(str, options.settings.client.bootstrap))
    query = (servers, options.transactional_id, options.checkpoint, options.query_name)
    name = hashlib.sha256(json.dumps(query).encode("utf-8")).hexdigest()[:32]
    return Path(SparkFiles.getRootDirectory()) / f"fencepost-{name}.json"

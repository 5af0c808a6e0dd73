"""Errors that a user can fix, as one sentence at the top of Spark's exception.

Spark plans and reads a Python source in processes of its own. If one raises, Spark puts the whole
traceback into the message of its exception, before the sentence that says what to do. It leaves the
traceback out if SPARK_HIDE_TRACEBACK is set, which it looks up in that process when it formats the
exception; afterwards the process ends. So we set it when an error of ours leaves our code, and keep
the traceback of every other error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.client.failures import RetriesExhausted
from fencepost.client.options import ClientOptions
from fencepost.spark.failures import BrokersUnreachable

_HIDE: Final = "SPARK_HIDE_TRACEBACK"


@contextmanager
def plain_errors(client: ClientOptions | None = None) -> Iterator[None]:
    """Makes Spark show the sentence of an error of ours, without a traceback."""
    try:
        yield
    except RetriesExhausted as problem:
        if client is None:
            raise
        servers = ",".join(map(str, client.bootstrap))
        _hide_traceback()
        raise BrokersUnreachable(
            f"the cluster at {servers} does not answer: start its brokers, or correct "
            f"kafka.bootstrap.servers ({problem})"
        ) from None
    except FencepostError:
        _hide_traceback()
        raise


def _hide_traceback() -> None:
    from pyspark import SparkFiles

    if SparkFiles._is_running_on_worker:  # noqa: SLF001
        os.environ[_HIDE] = "1"

"""The audit: tables and topics, compared row by row from the first request to the last payment.

    FENCEPOST_POSTGRES_DSN=... python -m fencepost_examples.refunds.postgres.audit
    --bootstrap-servers localhost:9092

Each of the three hand-overs is audited with `fencepost.spark.audit`, as that of any pipeline could
be. Then the questions of `refunds.spark.audit` are asked of the requests, the decisions and the
payments. What an audit has not judged counts as wrong. The exit code is 1 if anything is.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.client.blocking import connect
from fencepost.outside.connection import Database
from fencepost.spark import audit
from fencepost.spark.auditing.question import Asked
from fencepost.spark.ledger.entry import group_of
from fencepost_examples.refunds.postgres.tables import PAYMENTS, REQUESTS, dsn
from fencepost_examples.refunds.spark.audit import Findings, examine
from fencepost_examples.refunds.spark.loader import committed_end, read_range
from fencepost_examples.refunds.spark.pipeline import transactional_id
from fencepost_examples.refunds.spark.session import make_session
from fencepost_examples.refunds.spark.settlements import (
    AUDIT_SCHEMA,
    EXACTLY_ONCE,
    REFUND_SCHEMA,
    SETTLEMENT_SCHEMA,
    Topics,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN: Final = "between the requests and their topic"
DECIDED: Final = "between settlements and decisions"
OUT: Final = "between emitted refunds and payments"
EVER: Final = 1 << 50
"""A time in the future: everything has been processed."""


def hand_overs(topics: Topics, prefix: str) -> dict[str, Asked]:
    """The questions about the hand-overs."""
    settlement = ["merchant", "amount_paise", "reason", "actor", "day"]
    shared: Asked = {"key": "value:refund_id", "table_key": "refund_id", "postgres": dsn()}
    return {
        IN: {
            **shared,
            "input_table": REQUESTS,
            "output": topics.settlements,
            "compare": settlement,
            "until_ms": EVER,
        },
        DECIDED: {
            **shared,
            "input": topics.settlements,
            "output": topics.audit,
            "compare": settlement,
            "group": group_of(transactional_id(prefix)),
        },
        OUT: {
            **shared,
            "input": topics.refunds,
            "table": PAYMENTS,
            "compare": ["merchant", "amount_paise"],
            "until_ms": EVER,
        },
    }


def compare(spark: SparkSession, servers: str, asked: Asked, expected: int | None) -> int:
    """How many inputs or outputs of a hand-over are wrong, or were not judged."""
    found = audit(spark, servers, **asked)
    print(found, flush=True)
    read = found.inputs.records + found.inputs.rows
    lacking = 0 if expected is None else abs(expected - read)
    unjudged = sum(count for count, _ in found.not_judged)
    # What cannot be told is wrong, whatever the reason.
    return sum(found.counts.values()) + lacking + unjudged + (found.is_exactly_once is None)


def open_views(spark: SparkSession, servers: str, topics: Topics) -> None:
    """Creates the views of `examine`: requests, decisions and payments."""
    database = Database(dsn())
    for view, table, schema in (
        ("settlements", REQUESTS, SETTLEMENT_SCHEMA),
        ("refunds", PAYMENTS, REFUND_SCHEMA),
    ):
        columns = ", ".join(column.split()[0] for column in schema.split(", "))
        with database.connect() as connection, database.explaining(f"reading {table}"):
            rows = connection.execute(f"SELECT {columns} FROM {table}".encode()).fetchall()
        spark.createDataFrame(rows, schema).createOrReplaceTempView(view)
    with connect(servers) as cluster:
        end = committed_end(cluster, topics.audit)
    read_range(spark, servers, AUDIT_SCHEMA, {}, end).drop(
        "partition", "offset"
    ).createOrReplaceTempView("audit")


def find_all(
    spark: SparkSession, servers: str, requests: int | None = None, prefix: str = ""
) -> Findings:
    """Answers every question. `requests`: how many there must be."""
    topics = Topics.of(EXACTLY_ONCE, prefix)
    wrong = {
        name: compare(spark, servers, asked, None if name == OUT else requests)
        for name, asked in hand_overs(topics, prefix).items()
    }
    open_views(spark, servers, topics)
    findings = examine(spark)
    findings.wrong |= wrong
    return findings


def main() -> None:
    """Runs the audit."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--bootstrap-servers", required=True)
    made.add_argument("--prefix", default="", help="the prefix of all topic names")
    made.add_argument("--requests", type=int, help="how many there must be")
    made.add_argument("--report", type=Path, help="where to write the answers")
    options = made.parse_args()
    spark = make_session("refunds audit")
    findings = find_all(spark, options.bootstrap_servers, options.requests, options.prefix)
    spark.stop()
    answers = json.dumps({EXACTLY_ONCE: asdict(findings)}, indent=2)
    if options.report:
        options.report.write_text(answers)
    else:
        print(answers)
    sys.exit(0 if findings.is_clean else 1)


if __name__ == "__main__":
    main()

"""Prints what is wrong in a log.

python -m fencepost_examples.forensics --path /copies/kafka-logs
python -m fencepost_examples.forensics --bootstrap-servers 127.0.0.1:9092 --topics refunds,audit
"""

from __future__ import annotations

import argparse
import sys

from fencepost_examples.forensics.questions import (
    fencing_storms,
    hanging_transactions,
    slowest_commits,
    view,
)


def main(arguments: list[str]) -> int:
    """Runs the three questions and prints their answers."""
    from pyspark.sql import SparkSession

    import fencepost.spark  # noqa: F401 - chooses the Python of the workers

    options = _parser().parse_args(arguments)
    where = _where(options)
    spark = SparkSession.builder.appName("fencepost-forensics").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    transactions = view(spark, "transactions", where).cache()
    states = view(spark, "transaction_state", where).cache()
    print("Hanging transactions: open, and no coordinator will end them")
    older_than_ms = options.older_than_seconds * 1000
    hanging_transactions(transactions, states, older_than_ms).show(50, truncate=False)
    print("Slowest commits")
    slowest_commits(transactions, states, options.limit).show(options.limit, truncate=False)
    print("Fencing storms: ids with many new producers in one minute")
    fencing_storms(states).show(50, truncate=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fencepost_examples.forensics", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--path", help="log folders, separated by commas")
    source.add_argument("--bootstrap-servers", help="the brokers of a cluster")
    parser.add_argument("--topics", help="topics, separated by commas; with --bootstrap-servers")
    parser.add_argument("--limit", type=int, default=10, help="how many slow commits to show")
    parser.add_argument(
        "--older-than-seconds",
        type=int,
        default=20 * 60,
        help="what counts as hanging: transaction.max.timeout.ms and five minutes",
    )
    return parser


def _where(options: argparse.Namespace) -> dict[str, str]:
    if options.path is not None:
        subscription = {"subscribe": options.topics} if options.topics else {}
        return {"path": options.path, **subscription}
    return {
        "kafka.bootstrap.servers": options.bootstrap_servers,
        **({"subscribe": options.topics} if options.topics else {"subscribePattern": ".*"}),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

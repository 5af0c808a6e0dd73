"""Both topics into Parquet, as a warehouse would load them: committed rows only.

python -m examples.refunds.loader --bootstrap-servers localhost:9092 --into /tmp/warehouse
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from examples.refunds.pipeline import make_session
from examples.refunds.settlements import AUDIT, REFUNDS, SETTLEMENT_SCHEMA, SETTLEMENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMAS = {
    SETTLEMENTS: SETTLEMENT_SCHEMA,
    AUDIT: f"{SETTLEMENT_SCHEMA}, decision string",
    REFUNDS: "refund_id string, merchant string, amount_paise long",
}


def read_topic(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """A topic as it is now, as typed columns."""
    rows = (
        spark.read.format("fencepost")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("columns", "value")
        .load()
    )
    return rows.selectExpr(f"from_json(cast(value AS string), '{SCHEMAS[topic]}') AS r").select(
        "r.*"
    )


def load(spark: SparkSession, bootstrap: str, folder: str) -> None:
    """Writes one Parquet table per topic."""
    for topic in SCHEMAS:
        read_topic(spark, bootstrap, topic).write.mode("overwrite").parquet(f"{folder}/{topic}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--into", required=True)
    options = parser.parse_args()
    spark = make_session("refunds loader")
    load(spark, options.bootstrap_servers, options.into)
    spark.stop()


if __name__ == "__main__":
    main()

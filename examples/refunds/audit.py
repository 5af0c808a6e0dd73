"""What an auditor asks, answered on Spark from the Parquet tables of the loader.

    python -m examples.refunds.audit --bootstrap-servers localhost:9092 --warehouse /tmp/warehouse

Every settlement decided once; every approval with its refund and every refund with its approval, of the same amount;
none twice, none missing; and the offsets that were committed are the end of what was decided.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from examples.refunds.pipeline import APPROVED, TRANSACTIONAL_ID, make_session
from examples.refunds.settlements import AUDIT, REFUNDS, SETTLEMENTS
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import connect
from fencepost.client.reading import LATEST
from fencepost.spark.ledger import group_of, read_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUESTIONS = {
    "settlements without a decision": "SELECT count(*) FROM settlements s LEFT ANTI JOIN audit a USING (refund_id)",
    "decisions without a settlement": "SELECT count(*) FROM audit a LEFT ANTI JOIN settlements s USING (refund_id)",
    "settlements decided more than once": "SELECT count(*) FROM (SELECT refund_id FROM audit GROUP BY 1 HAVING count(*) > 1)",
    "refunds paid more than once": "SELECT count(*) FROM (SELECT refund_id FROM refunds GROUP BY 1 HAVING count(*) > 1)",
    "approvals without a refund": f"""SELECT count(*) FROM audit a LEFT ANTI JOIN refunds r
        ON a.refund_id = r.refund_id AND a.amount_paise = r.amount_paise WHERE a.decision = '{APPROVED}'""",
    "refunds without an approval": f"""SELECT count(*) FROM refunds r LEFT ANTI JOIN
        (SELECT * FROM audit WHERE decision = '{APPROVED}') a
        ON a.refund_id = r.refund_id AND a.amount_paise = r.amount_paise""",
}


def ask(spark: SparkSession, folder: str) -> dict[str, int]:
    """Each question with the number of rows that are wrong."""
    for name, topic in {"settlements": SETTLEMENTS, "audit": AUDIT, "refunds": REFUNDS}.items():
        spark.read.parquet(f"{folder}/{topic}").createOrReplaceTempView(name)
    return {question: spark.sql(query).collect()[0][0] for question, query in QUESTIONS.items()}


def count_rows(spark: SparkSession, folder: str) -> dict[str, int]:
    return {
        topic: spark.read.parquet(f"{folder}/{topic}").count()
        for topic in (SETTLEMENTS, AUDIT, REFUNDS)
    }


def offsets_behind(bootstrap: str) -> int:
    """How many settlements the committed offsets are behind; all of them when there is no ledger."""
    with connect(bootstrap) as cluster:
        page = read_page(cluster.offset_fetch(group_of(TRANSACTIONAL_ID)), "")
        count = len(cluster.metadata([SETTLEMENTS]).topics[SETTLEMENTS].partitions)
        places = [TopicPartition(SETTLEMENTS, index) for index in range(count)]
        ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    return sum(ends[tp].offset - page.sources.get(tp, 0) for tp in places)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--warehouse", required=True)
    options = parser.parse_args()
    spark = make_session("refunds audit")
    answers = ask(spark, options.warehouse)
    answers["settlements behind the committed offsets"] = offsets_behind(options.bootstrap_servers)
    report = {"rows": count_rows(spark, options.warehouse), "wrong": answers}
    spark.stop()
    print(json.dumps(report, indent=2))
    sys.exit(1 if any(answers.values()) else 0)


if __name__ == "__main__":
    main()

"""The audit: an auditor's questions, answered on Spark from the loader's Parquet tables.

    python -m fencepost_examples.refunds.spark.audit --bootstrap-servers localhost:9092 --warehouse
    /tmp/warehouse

It checks that every settlement was decided once and by the rules; that every approval has its
refund and every refund its approval, of the same amount; that none is missing or doubled. And that
the committed offsets and the ledger match the output and Spark's checkpoint. `--load` loads new
records first. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.spark.ledger.entry import LedgerView, group_of
from fencepost.spark.ledger.reader import read_ledger_view
from fencepost_examples.refunds.spark.loader import committed_end, load
from fencepost_examples.refunds.spark.pipeline import (
    decide,
    ledger_topic,
    rules_table,
    transactional_id,
)
from fencepost_examples.refunds.spark.session import make_session
from fencepost_examples.refunds.spark.settlements import (
    ABOVE_DAILY_LIMIT,
    APPROVED,
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    Topics,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PER_REFUND: Final = f"""
    SELECT refund_id,
        count_if(kind = 's') AS settlements,
        count_if(kind = 'a') AS decisions,
        count_if(kind = 'a' AND decision = '{APPROVED}') AS approvals,
        count_if(kind = 'r') AS refunds,
        max(amount_paise) AS highest_paise,
        min(amount_paise) AS lowest_paise
    FROM (
        SELECT 's' AS kind, refund_id, amount_paise, NULL AS decision FROM settlements
        UNION ALL SELECT 'a', refund_id, amount_paise, decision FROM audit
        UNION ALL SELECT 'r', refund_id, amount_paise, NULL FROM refunds)
    GROUP BY refund_id"""
"""How often each refund appears in the three topics. QUESTIONS are conditions on this."""

QUESTIONS: Final = {
    "settlements without a decision": "settlements > 0 AND decisions = 0",
    "settlements decided more than once": "decisions > 1",
    "decisions without a settlement": "settlements = 0 AND decisions > 0",
    "approvals without their refund": "approvals > 0 AND refunds = 0",
    "refunds without their audit row": "refunds > 0 AND approvals = 0",
    "refunds paid more than once": "refunds > 1",
    "refunds of another amount than settled": "highest_paise <> lowest_paise",
}

AGAINST_THE_RULES: Final = "decisions against the merchants' rules"
ABOVE_THE_LIMIT: Final = "days above a merchant's limit"
BELOW_THE_LIMIT: Final = "refused for the day's limit too early"
OFFSETS_AND_OUTPUT: Final = "offsets committed elsewhere than output ends"
OFFSETS_AND_INPUT: Final = "settlements behind the committed offsets"
LEDGER_AND_CHECKPOINT: Final = "batches between the ledger and the checkpoint"


@dataclass(slots=True)
class Findings:
    """The answers for one pipeline: row counts, and the count of each violation."""

    rows: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    refunds_too_many: int = 0
    paid_too_much_paise: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether there is no violation."""
        return not any(self.wrong.values())


def open_tables(spark: SparkSession, folder: Path, topics: Topics) -> None:
    """Creates views of the loaded topics."""
    names = {"settlements": topics.settlements, "refunds": topics.refunds, "audit": topics.audit}
    for name, topic in names.items():
        spark.read.parquet(str(folder / topic)).createOrReplaceTempView(name)


def examine(spark: SparkSession, *, daily_limit: bool = False) -> Findings:
    """Answers every question that needs only the three views."""
    counts = [f"count_if({condition}) AS `{name}`" for name, condition in QUESTIONS.items()]
    sums = [
        "sum(settlements) AS settlements",
        "sum(decisions) AS decisions",
        "sum(refunds) AS refunds",
        "sum(if(refunds > 1, refunds - 1, 0)) AS too_many",
        "sum(if(refunds > 1, (refunds - 1) * highest_paise, 0)) AS too_much",
    ]
    row = spark.sql(f"SELECT {', '.join(counts + sums)} FROM ({PER_REFUND})").collect()[0]
    findings = Findings(
        rows={name: row[name] or 0 for name in ("settlements", "decisions", "refunds")},
        wrong={name: row[name] for name in QUESTIONS},
        refunds_too_many=row["too_many"] or 0,
        paid_too_much_paise=row["too_much"] or 0,
    )
    findings.wrong[AGAINST_THE_RULES] = _against_the_rules(spark, daily_limit=daily_limit)
    if daily_limit:
        findings.wrong |= _daily_limits(spark)
    return findings


def _against_the_rules(spark: SparkSession, *, daily_limit: bool) -> int:
    """Compares all decisions with the rules. A daily limit may only refuse an approval."""
    decide(spark.table("settlements"), rules_table(spark)).createOrReplaceTempView("expected")
    allowed = "false"
    if daily_limit:
        allowed = f"e.decision = '{APPROVED}' AND a.decision = '{ABOVE_DAILY_LIMIT}'"
    return int(
        spark.sql(
            f"""SELECT count(*) FROM audit a JOIN expected e USING (refund_id)
                WHERE a.decision <> e.decision AND NOT ({allowed})"""
        ).collect()[0][0]
    )


def _daily_limits(spark: SparkSession) -> dict[str, int]:
    """Lost state would approve too much, state that was counted twice would refuse too early."""
    rules_table(spark).createOrReplaceTempView("rules")
    spent = f"""SELECT merchant, day, daily_limit_paise,
            sum(if(decision = '{APPROVED}', amount_paise, 0)) AS spent,
            min(if(decision = '{ABOVE_DAILY_LIMIT}', amount_paise, NULL)) AS smallest_refused
        FROM audit JOIN rules USING (merchant) GROUP BY ALL"""
    row = spark.sql(
        f"""SELECT count_if(spent > daily_limit_paise) AS above,
                count_if(spent + smallest_refused <= daily_limit_paise) AS below FROM ({spent})"""
    ).collect()[0]
    return {ABOVE_THE_LIMIT: row["above"], BELOW_THE_LIMIT: row["below"]}


def output_ends(spark: SparkSession, topic: str) -> dict[TopicPartition, int]:
    """Returns, for each settlements partition, the offset at which the output ends."""
    rows = spark.sql(
        "SELECT source_partition, max(source_offset) + 1 AS end FROM audit GROUP BY 1"
    ).collect()
    return {TopicPartition(topic, row["source_partition"]): row["end"] for row in rows}


def compare_offsets(
    view: LedgerView,
    committed: dict[TopicPartition, int],
    output: dict[TopicPartition, int],
    settlements: dict[TopicPartition, int],
    last_batch: int | None,
) -> dict[str, int]:
    """Compares the committed offsets with output and input, and the ledger with the checkpoint."""
    wrong = {
        OFFSETS_AND_OUTPUT: sum(committed.get(p, 0) != output.get(p, 0) for p in settlements),
        OFFSETS_AND_INPUT: sum(end - committed.get(p, 0) for p, end in settlements.items()),
    }
    if last_batch is not None:
        in_ledger = view.entry.batch_id if view.entry else -1
        wrong[LEDGER_AND_CHECKPOINT] = abs(last_batch - in_ledger)
    return wrong


def last_batch_of(checkpoint: Path) -> int:
    """Returns the last batch in Spark's commit log; -1 for none."""
    numbers = [
        int(file.name) for file in (checkpoint / "commits").glob("*") if file.name.isdecimal()
    ]
    return max(numbers, default=-1)


def read_ledger(cluster: Cluster, prefix: str) -> LedgerView:
    """Reads the pipeline's record in the ledger."""
    return read_ledger_view(cluster, transactional_id(prefix), ledger_topic(prefix))


def read_offsets(cluster: Cluster, prefix: str) -> dict[TopicPartition, int]:
    """Returns the source offsets that the pipeline's transactions have committed."""
    committed = cluster.offset_fetch(group_of(transactional_id(prefix)))
    return {tp: value.offset for tp, value in committed.items()}


def audit_side(spark: SparkSession, writing: str, options: argparse.Namespace) -> Findings:
    """Audits one pipeline, and loads new records first with --load."""
    topics = Topics.of(writing, options.prefix)
    if options.load:
        load(spark, options.bootstrap_servers, options.warehouse, topics)
    open_tables(spark, options.warehouse, topics)
    findings = examine(spark, daily_limit=options.daily_limit)
    if writing == EXACTLY_ONCE:
        last_batch = last_batch_of(options.checkpoint / writing) if options.checkpoint else None
        with connect(options.bootstrap_servers) as cluster:
            findings.wrong |= compare_offsets(
                read_ledger(cluster, options.prefix),
                read_offsets(cluster, options.prefix),
                output_ends(spark, topics.settlements),
                committed_end(cluster, topics.settlements),
                last_batch,
            )
    return findings


def parser() -> argparse.ArgumentParser:
    """Returns the parser of this program's options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--bootstrap-servers", required=True)
    made.add_argument("--warehouse", required=True, type=Path, help="the folder of the tables")
    made.add_argument(
        "--checkpoint", type=Path, help="the pipeline's checkpoint, to compare with its ledger"
    )
    made.add_argument("--prefix", default="", help="the prefix of all topic names")
    made.add_argument("--daily-limit", action="store_true", help="audit the stateful variant")
    made.add_argument(
        "--report", type=Path, help="where to write the answers (default: standard output)"
    )
    made.add_argument("--load", action="store_true", help="load new records first")
    made.add_argument(
        "--writing",
        action="append",
        choices=(EXACTLY_ONCE, AT_LEAST_ONCE),
        help="which query to audit (default: exactly-once); may be given twice",
    )
    return made


def main() -> None:
    """Runs the audit."""
    options = parser().parse_args()
    spark = make_session("refunds audit")
    sides = {side: audit_side(spark, side, options) for side in options.writing or [EXACTLY_ONCE]}
    spark.stop()
    answers = json.dumps({side: asdict(findings) for side, findings in sides.items()}, indent=2)
    if options.report:
        options.report.write_text(answers)
    else:
        print(answers)
    sys.exit(0 if all(findings.is_clean for findings in sides.values()) else 1)


if __name__ == "__main__":
    main()

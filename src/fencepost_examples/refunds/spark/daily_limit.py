"""The stateful variant: approvals count against a limit per merchant and day.

Spark keeps the sum of each merchant and day in its state store, which belongs to the checkpoint and
not to Kafka. The sum survives any crash: if a batch is in the topics already, Spark runs it again
for its state and the sink drops its rows; if not, Spark runs it again from the state before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fencepost_examples.refunds.spark.settlements import ABOVE_DAILY_LIMIT, APPROVED, AUDIT_SCHEMA

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

_COLUMNS: Final = [column.split()[0] for column in AUDIT_SCHEMA.split(", ")]


def limit_per_day(decided: DataFrame) -> DataFrame:
    """Refuses approvals that would exceed the limit."""
    from pyspark.sql.streaming.state import GroupStateTimeout

    return decided.groupBy("merchant", "day").applyInPandasWithState(
        _spend, AUDIT_SCHEMA, "spent_paise long", "update", GroupStateTimeout.NoTimeout
    )


def _spend(_key: Any, parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    import pandas as pd

    spent = state.get[0] if state.exists else 0
    # In the order of the topic, not in the order in which Spark delivers the rows.
    rows = pd.concat(list(parts)).sort_values(["source_partition", "source_offset"])
    decisions = []
    for row in rows.itertuples():
        decision = row.decision
        if decision == APPROVED and spent + row.amount_paise > row.daily_limit_paise:
            decision = ABOVE_DAILY_LIMIT
        if decision == APPROVED:
            spent += row.amount_paise
        decisions.append(decision)
    state.update((int(spent),))
    rows["decision"] = decisions
    yield rows[_COLUMNS]

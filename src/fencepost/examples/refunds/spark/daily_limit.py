"""The stateful variant: what is approved counts against a limit per merchant and day.

Spark keeps the sum of each merchant and day in its state store, which belongs to the checkpoint,
not to Kafka. It stays right across any crash because a batch that is in the topics already is run
again for its state and its rows are dropped, and one that is not is run again from the state before
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fencepost.examples.refunds.spark.settlements import ABOVE_DAILY_LIMIT, APPROVED, AUDIT_SCHEMA

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

_COLUMNS: Final = [column.split()[0] for column in AUDIT_SCHEMA.split(", ")]


def limit_per_day(decided: DataFrame) -> DataFrame:
    """Turns approvals that would go above the limit into refusals."""
    from pyspark.sql.streaming.state import GroupStateTimeout

    return decided.groupBy("merchant", "day").applyInPandasWithState(
        _spend, AUDIT_SCHEMA, "spent_paise long", "update", GroupStateTimeout.NoTimeout
    )


def _spend(_key: Any, parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    import pandas as pd

    spent = state.get[0] if state.exists else 0
    # The order of the topic decides who comes first, not the order in which Spark happens to
    # deliver.
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

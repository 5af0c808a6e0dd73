"""The rule of the ledger in the words of a table. Every sentence ends in a next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.spark.ledger.rule import Case

HOW_TO_WRITE_ALL: Final = "union the DataFrames of a batch into one call, sink(df, batch_id)"

_MATCHING: Final = "Restore the checkpoint that matches the table, or {restart}"

TABLE_SENTENCES: Final[Mapping[Case, str]] = {
    Case.NO_LEDGER: "batch {batch.batch_id} is not the first one, but the database has no ledger "
    "row of this sink: sink_id= or ledger_table= was changed, the row or its table was deleted, "
    "this is another or an older database, or your function has not called the sink for any "
    "earlier batch. The sink cannot tell whether the batch is in the table. If an argument was "
    "changed, go back to the former one. Otherwise look at the table; only if the batch is not "
    "there, pass adopt=True once",
    Case.OTHER_POSITION: "batch {batch.batch_id} does not begin where batch {entry.batch_id}, the "
    "last one in the table, ended: {difference}. The checkpoint was edited, or restored and "
    f"continued without the sink, and rows would be missing or written twice. {_MATCHING}",
    Case.LOST: "batch {entry.lost} of this query is not in the table: the sink failed, and your "
    "function caught the exception. To write its rows, restore a checkpoint whose last batch is "
    "{entry.batch_id}, or {restart}",
    Case.GAP: "the last batch of this query in the table is {entry.batch_id}, and the checkpoint "
    "continues with batch {batch.batch_id}. If a call failed and your function caught the "
    "exception, or the database was restored from a backup, rows are missing: restore a checkpoint "
    "whose last batch is {entry.batch_id}, or {restart}. Only if your function did not call the "
    "sink for the batches in between because they had no rows, pass may_skip=True to the sink",
    Case.LAST_IS_SHORT: "batch {entry.batch_id} of this query lacks rows: a second call for it was "
    "refused, and the query went on. Write the missing rows by other means, and only then "
    "pass adopt=True once",
    Case.OTHER_OFFSETS: "batch {batch.batch_id} is already in the table, but with other source "
    "offsets than the checkpoint has for it: the checkpoint was edited, or two queries use it. "
    f"Stop the other query if there is one. {_MATCHING}",
    Case.SECOND_SINK: "batch {batch.batch_id} was already written in this run of the query by "
    f"another sink with the same sink_id: give each sink its own sink_id, or {HOW_TO_WRITE_ALL}",
    Case.SHORT: "batch {batch.batch_id} is in the table with the rows of its first call only: a "
    f"second call for it was refused. {HOW_TO_WRITE_ALL[0].upper()}{HOW_TO_WRITE_ALL[1:]}. Write "
    "the missing rows by other means, and only then pass adopt=True once: the sink accepts the "
    "table as it is",
    Case.OLDER_BATCH: "the last batch of this query in the table is {entry.batch_id}, which is "
    "newer than batch {batch.batch_id} of this driver: another driver runs the same query, or the "
    "checkpoint was restored from a backup or edited. Stop one of the drivers if there are two. "
    f"{_MATCHING}",
    Case.OTHER_START: "take_over names query {entry.query_id}, but this query does not begin where "
    "its batch {entry.batch_id} ended: {difference}. With an empty checkpoint, start from "
    "there{start}. Only if you have compared where it begins with the end of the table, and no row "
    "is between them or in both, pass adopt=True once",
    Case.WRONG_OWNER: "take_over names query {overrides.take_over}, but the sink_id belongs to "
    "query {entry.query_id} (last batch {entry.batch_id}), and this is query {batch.query_id}: "
    "name the query that this one continues; if it continues none, give it its own sink_id",
    Case.OTHER_QUERY: "the sink_id belongs to query {entry.query_id} (last batch "
    "{entry.batch_id}), and this is query {batch.query_id}: either two queries use one sink_id, or "
    "the checkpoint is new and would write rows again that are in the table ({difference}). "
    "Without the option checkpointLocation it is new at every start. If two queries write into "
    "this table, give each its own sink_id. If the checkpoint is new, keep the sink_id: restore "
    "the former checkpoint, or {restart}",
    Case.EMPTY_STATE: "this query keeps state, and its checkpoint is new: it would continue query "
    "{entry.query_id} (last batch {entry.batch_id}) with empty state, and its counts, windows or "
    "deduplication would be wrong. Restore the checkpoint; or read the source from its beginning "
    "into another table with another sink_id. Only if empty state is right, pass "
    "allow_empty_state=True once",
}
"""The cases about parts do not occur: a batch is one DataFrame."""

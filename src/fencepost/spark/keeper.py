"""Who keeps the ledger: reads it at the start of a run, and enters every batch into its own transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.base.ids import TopicPartition
from fencepost.client.groups import CommittedOffset
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger import LedgerEntry, Page, encode_entry, group_of, read_page
from fencepost.spark.offsets import parse_sources

if TYPE_CHECKING:
    from fencepost.client.options import ClientOptions
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.accounts import Account
    from fencepost.spark.moment import Moment


class LedgerKeeper:
    """The ledger of one transactional id. `must_commit_sources`: it is an error when their offsets cannot be entered."""

    def __init__(
        self,
        options: ClientOptions,
        transactional_id: str,
        topic: str | None,
        *,
        must_commit_sources: bool,
    ) -> None:
        self.group = group_of(transactional_id)
        self._options = options
        self._topic = topic
        self._must_commit_sources = must_commit_sources

    def read(self, query_id: str) -> Page:
        """What is in the ledger, once every transaction that may change it is over."""
        return read_page(cluster_of(self._options).offset_fetch(self.group), query_id)

    def enter(
        self,
        identity: ProducerIdentity,
        moment: Moment,
        account: Account,
        before: Page,
        *,
        longest_ms: int,
        with_sources: bool,
    ) -> Page | None:
        """Writes the batch's entry, and the sources' offsets if wanted, into the transaction: the page that follows.

        None when nothing was written and no topic is known to hold a ledger: then there is nothing to commit.
        """
        place = before.place or self._place(account)
        if place is None:
            return None
        entry = LedgerEntry(moment.query_id, moment.batch_id, moment.fingerprint, longest_ms)
        sources = parse_sources(moment.end_offsets) if with_sources else None
        if sources and place in sources:
            if self._must_commit_sources:
                raise SinkRefused(
                    f"{place} is both read by the query and the place of its ledger: pass ledger_topic="
                )
            sources = None
        offsets = {tp: CommittedOffset(offset) for tp, offset in (sources or {}).items()}
        offsets[place] = encode_entry(entry)
        cluster_of(self._options).txn_offset_commit(identity, self.group, offsets)
        return Page(place, entry, sources or before.sources)

    def _place(self, account: Account) -> TopicPartition | None:
        if self._topic is not None:
            return TopicPartition(self._topic, 0)
        return TopicPartition(min(account.partitions).topic, 0) if account.partitions else None

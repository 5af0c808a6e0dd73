"""The ledger: which micro-batch is committed, recorded by the transaction that committed it.

ledger.py  entries, and what to do with a batch in view of the last entry
keeper.py  reads the entry at the start of a run, writes one in every transaction
topic.py   the compacted topic that holds the records
reader.py  the newest committed record of a transactional id
admin.py   `fencepost ledger list|show|adopt|forget`
former.py  where earlier versions kept it: an offset of a consumer group
"""

"""The ledger: which micro-batch is committed, recorded by the transaction that committed it.

entry.py         one entry and its encoding
decision.py      what to do with a batch, given the last entry
store.py         reads the entry at the start of a run, writes one in every transaction
entry_writer.py  source offsets and entry in the transaction of a batch
topic.py         the compacted topic that holds the records
record.py        one record as a sealed batch
reader.py        finds the newest committed record of a transactional id
admin.py         `fencepost ledger list|show|adopt|forget`
legacy.py        where version 0.1 kept it: an offset of a consumer group
"""

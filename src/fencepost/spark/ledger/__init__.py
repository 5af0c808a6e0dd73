"""The ledger: which batch is committed, recorded by the transaction that committed it.

entry.py     one entry and its encoding
rule.py      what to do with a batch, given the last entry
store.py     reads the entry at the start of a run, and asks the rule about a batch
writer.py    source offsets and entry in the transaction of a batch
sources.py   whether a query's sources are topics of the sink's cluster
topic.py     the compacted topic that holds the records
reader.py    finds the newest committed record of a transactional id
admin.py     `fencepost ledger list|show|adopt|forget`
"""

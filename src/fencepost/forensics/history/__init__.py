"""The history of a transactional id: what its coordinators wrote, and what it means.

facts.py            looks: the log, the coordinator, the partitions
transaction_log.py  looks: `__transaction_state`, read or tailed
markers.py          looks: transactions and markers in partitions
state_changes.py    the records of an id, and what compaction took
incidents.py        which of them took the id from a producer
rules.py, why.py    judges: the cause, by a table
torn.py             judges: transactions that an administrator's marker tore
without_log.py      records inferred from partitions, for users who may not read the log
explaining.py       the verdict with its evidence
timeline.py, timeline_picture.py  all states in order, as rows and as a picture
"""

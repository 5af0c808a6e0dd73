"""The transaction coordinator as a service: `coordinator.txn` decides, this folder carries it out.

coordinator.py     requests find the partition of their transactional id; decide, append, reply
partition.py       one partition of `__transaction_state`: its state, its log, who waits for it
ending.py          one transaction from its Prepare record over the markers to Complete
markers.py         commit and abort markers, written to the partitions of a transaction
loading.py         taking over a partition: read its log, finish what was prepared
checkpoint.py      the state saved beside the log, so that a load reads only what came after it
timeouts.py        open transactions that time out, and transactional ids that expire
reconciliation.py  after a loss of power: what coordinator and partitions disagree about
"""

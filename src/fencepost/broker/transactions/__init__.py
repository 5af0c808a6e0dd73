"""The transaction coordinator as a service: `coordinator.txn` decides, this folder carries it out.

coordinator.py       finds the partition of a transactional id; decide, append, reply
partition.py         one partition of `__transaction_state`: its state, its log, its pending ids
ending.py            one transaction from its Prepare record through the markers to Complete
markers.py           appends commit and abort markers to partitions, or sends them to their leaders
arriving_markers.py  writes the markers of coordinators on other nodes, and of administrators
first_writes.py      asks coordinators on other nodes about first writes
producer_ids.py      assigns producer ids from blocks that the controller reserves
journal.py           counts and logs what happens to transactions and producers
timeouts.py          aborts transactions that time out, and removes transactional ids that expire
reconciliation.py    settles what coordinators and partitions disagree about after a power loss
"""

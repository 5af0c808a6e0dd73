"""The controller: the only writer of the metadata log.

controller.py    requests: decide, append, answer when it is done
answer.py        an answer, or REQUEST_TIMED_OUT if brokers take too long
new_topics.py    what a new topic gets from the broker's settings
metadata_log.py  the log: check, load, append, wait for durability, shorten
checkpoint.py    saves the state in place of its history, so that the log stays short
log_check.py     checks the log before a start changes anything
followers.py     the brokers, as the controller knows them

Theory of operation
-------------------
Only the controller may create, delete and grow topics, change settings, raise leader epochs,
register, fence and remove brokers, elect leaders, give partitions other replicas, and reserve
blocks of producer ids. Every such change takes these steps:

    1. decide    on the newest state (`coordinator.metadata`, pure)
    2. append    its records to the metadata log, as one batch
    3. apply     them to the state
    4. durable   wait until the disk has everything that was appended so far
    5. effects   brokers open, close and reconfigure their partitions
    6. answer    the client, or hand out the block

Steps 1 to 3 run in one turn of the loop, so the next request decides on the result. A change of
more than `DECIDED_AT_ONCE` records is decided, encoded over several turns, and then appended and
applied in one turn, provided that the state has not changed since; otherwise it is decided again.
Steps 4 to 6 of several changes overlap. In `os` mode an append is durable, and all steps of a small
change run in one turn.

No step 5 begins before step 4, so no client can write to a partition that a power loss would
undo, and no folder is removed for a deletion that is not certain.

The controller opens no partition and knows no coordinator. It knows brokers by one interface,
`Followers`: they apply its records and carry out the effects. For a single broker that is the
broker of the same process (`broker/metadata`), joined by direct calls; for several it is
`cluster/parent/remote_followers.py`. It also owns the state: the controller reads
it, folds the log into it at a start, and changes it through `Followers.apply` from then on. The
controller itself owns the log, its checkpoints, and the names of topics that are being removed: the
creation of a topic of the same name waits until their folders and committed offsets are gone.

A crash leaves, if it comes

    before 2       nothing
    from 2 to 4    a change that may be in the log or not; its client got no answer
    after 4        the change. The next start opens what was created, and sets folders aside that
                   no longer belong to a topic. A block of producer ids that was not handed out is
                   never used.
"""

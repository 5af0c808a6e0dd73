"""The cluster as this broker knows it, and what that means for its partitions.

follower.py         the state of the metadata log, and what replies cache of it
effects.py          opens, closes and reconfigures the partitions that this broker leads

Theory of operation
-------------------
The broker follows the metadata log, which only the controller writes (`broker/controller`). It
needs nothing else from the controller: what a record means for this broker follows from the record
and the state (`coordinator.metadata.effects`), never from the request behind it.

Every batch of the log arrives twice:

    apply      in the turn in which it was appended. The state is a fold of the log. The follower
               owns it, and everything else in the broker reads it. Cached descriptions of what has
               changed are dropped. The effects of the batch are returned, not carried out.
    carry out  when the records are durable. First this broker releases partitions: those of deleted
               topics, and those that another broker leads now. Then it opens those of new topics
               and those whose leader it becomes, and passes on settings and leader epochs. Many
               partitions take several turns of the loop; `done` is called after the last one.

So the state is ahead of the partitions. A partition that the state has and that is not open yet is
shown without a leader, and requests for it get the retriable error NOT_LEADER_OR_FOLLOWER, as do
requests for a partition of another broker (`broker/partitions/leadership.py`). A deleted topic is
gone from the state at once, while its folders remain until its last partition is closed. An effect
that finds its topic deleted or replaced, or its leader changed again, does nothing.

At a start the controller folds the whole log into the state and sets aside folders without a topic;
then `MetadataEffects.opening_all` opens what this broker leads. That covers every effect that a
crash has interrupted.

A partition that the disk refuses to open is offline. It is tried again every few seconds, and at
the next start; one whose files are damaged is tried again only at the next start.
"""

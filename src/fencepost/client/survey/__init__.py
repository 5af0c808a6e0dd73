"""Questions to many partitions and brokers at once, for tools: each has an answer or a reason.

`asking.py` has the rules; the other modules have one kind of question each. They change nothing in
the cluster.
"""

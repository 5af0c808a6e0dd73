"""What the sink knows of the batch that it writes.

micro_batch.py    the batch and its query, read from Spark's engine
connect_batch.py  the same on Spark Connect, read from the checkpoint
checkpoint.py     the files of a checkpoint
origins.py        whether the query reads from the sink's own cluster
read_topics.py    the topics that the query reads there: rows must not go to them
parts.py          the DataFrames of one batch and their topics
"""

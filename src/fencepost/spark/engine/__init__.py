"""What the room knows of Spark's engine, and everything of Spark that is not public.

private_names.py   every private name, and what happens without it
versions.py        what differs between versions of Spark
session.py         settings and slots of a session; `hosts.py`: its hosts, and what may travel in
                   the clear; `workers_python.py`: the Python of its workers
micro_batch.py     the running batch of a query; `connect_batch.py`: the same on Spark Connect;
                   `checkpoint.py`: what the files of a checkpoint say
read_topics.py     the topics that a query reads
frames.py          shortcuts through DataFrames; `slots.py`: how the source learns of the slots
"""

"""What the room knows of Spark's engine, and everything of Spark that is not public.

private_names.py   every private name, and what happens without it
versions.py        what differs between versions of Spark
session.py         settings and slots of a session; `hosts.py`: its hosts, and what may travel in
                   the clear; `workers_python.py`: the Python of its workers
micro_batch.py     the running batch of a query; `stored_batch.py`: the same from the files of its
                   checkpoint, on Spark Connect and in the planner of a format
read_topics.py     the topics that a query reads
frames.py          columns of DataFrames; `slots.py`: how the source learns of the slots
"""

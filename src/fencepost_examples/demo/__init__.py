"""`fencepost demo`: runs the refunds pipeline, kills its parts, and audits the output.

Theory of operation. One Spark application runs two queries on the same settlements: one writes with
transactions, one without. So every kill hits both, the comparison is fair, and Spark starts half as
often. The application runs in `local-cluster` mode, where executors are processes; the broker is a
process too. The demo kills each with SIGKILL and starts it again. Of several brokers it also pauses
and rolls one at a time. Then another process loads all topics into Parquet and is killed during one
of its loads; its successor continues and audits them.

    plan.py       what to kill and when, from the seed
    processes.py  programs in their own sessions (sessions.py), so that no process is left behind
    reaper.py     kills them if the demo itself is killed with SIGKILL
    interrupt.py  Ctrl-C at any time, except while a process is starting
    folder.py     the folder of a run, and an environment that keeps Spark's files there
    cluster.py    the demo's broker or a given cluster, the topics
    several_brokers.py  the demo's cluster: kills, pauses or rolls one broker at a time
    progress.py   how many settlements the queries have decided, from their checkpoints
    run.py        the whole run
    between_databases.py  the demo with PostgreSQL (postgres.py) at both ends
    broker_only.py  the small demo, without Spark
    display.py    output during the run; report.py: the report; picture.py: the picture

Kills happen after a share of the settlements has been decided, not at a time, so they all happen on
a slow machine too. A seed repeats the plan; which batches it hits depends on the machine.
"""

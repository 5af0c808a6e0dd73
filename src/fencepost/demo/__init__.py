"""`fencepost demo`: the refunds pipeline while everything is killed, and the audit afterwards.

Theory of operation. One Spark application runs two queries side by side on the same settlements:
one writes with transactions, one without. So every kill strikes both, the comparison is fair, and
Spark starts half as often. The application runs in `local-cluster` mode, where executors are
processes; the broker is a process too. Each is killed with SIGKILL and comes back. Then a third
process loads all topics into Parquet, is killed in one of its loads too, and its successor goes on
and audits them.

    plan.py       what is killed, and when: from the seed
    processes.py  programs in sessions of their own (sessions.py), so that nothing they start is left behind
    reaper.py     ... also when the demo itself is killed with SIGKILL
    interrupt.py  Ctrl-C: at any moment but while a process is being started
    place.py      the folder, and an environment in which Spark leaves its files there
    cluster.py    the broker of our own or a given one, its topics, the settlements
    watch.py      how far the queries are, from their checkpoints
    run.py        the whole history
    show.py       the display; report.py: what is said at the end; picture.py: what is drawn

The moments of the kills are chosen by how much has been decided, not by the clock: so each of them
comes, on a slow machine too. A seed repeats the plan; the batches that it strikes depend on the
machine.
"""

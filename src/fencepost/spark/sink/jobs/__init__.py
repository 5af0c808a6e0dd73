"""The Spark job that writes one batch.

job.py             one attempt to write: chooses a route of `transport/` and collects its reports
job_failures.py    what a job raised, in one sentence
hosts.py           what may travel between hosts
preserving.py      what `preserve_partitioning` needs of a query
permitted.py       jobs without barrier stages, under dynamic allocation
counts.py          keeps Spark's row counts right when the sink runs a plan several times
workers_python.py  which Python the tasks run with
"""

"""What running queries do, for people and programs: `fencepost.spark.Progress`.

Spark tells a listener about every batch; sinks keep receipts
(`transaction/receipts.py`). From both:

    event of Spark -> progress.py -> board.py (one record per query) -> screens.py
                                        ^          |
                        receipts -------+          +-> `.queries`

progress.py  `Progress`: start, stop, the snapshots; and Spark's events
board.py     the queries of a session, and what each event changes
lag.py       how far a source is behind, from the offsets that Spark reports
screens.py   a table that is updated in place, plain lines, or a notebook cell
words.py     the texts of all three
"""

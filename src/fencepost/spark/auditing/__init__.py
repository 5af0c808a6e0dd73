"""Is a pipeline exactly-once? A Spark job that compares its input topics with its output topics.

Theory of operation. A key, computed from each record, says which outputs belong to which input. The
job reads both sides up to fixed offsets, brings records with equal keys together and counts:

    missing      an input that has no output
    torn         an input that has only some of its outputs
    doubled      an output more than the inputs with its key explain
    unexpected   an output whose key no input has
    reordered    an output behind the output of a later input of the same partition
    ahead        an output of an input that the group has not committed
    offsets      a committed offset that the input partition cannot have

On live topics it is a matter of order in which offsets are fetched (`bounds.py`): what must have an
output is fixed first, then the outputs, then the inputs that may explain them. What lies between is
in flight, and is counted but never a finding. Nor is what retention, compaction or an open
transaction hides: the result says how much was not judged, and why.

    bounds.py      which offsets are read, and which inputs must have outputs
    keys.py        the key of a record, and 128 bits of it
    reading.py     a range of offsets into packed hashes: only these are shuffled
    matching.py    pure: records with equal hashes into findings
    ordering.py    pure: matched pairs into findings about order
    job.py         the three stages on Spark
    judging.py     pure: what of that is proven, likely, or cannot be judged
    result.py      what the user gets
"""

"""`fencepost tap show`: the history of one transactional id, drawn from a trace.

show.py          the command's steps, and the lines of a trace
story.py         finds the exchanges of one transactional id
waits.py         where the time of a producer went
conclusion.py    concludes: fenced, waiting, lost, and why; conclusion_words.py says it
markers.py       looks for its markers in the logs of the partitions
hex_dump.py      the bytes of one request
lanes.py         arranges rows; lanes_text.py and lanes_svg.py draw them
"""

"""`fencepost tap show`: the history of one transactional id, drawn from a trace.

show.py          the command's steps
trace_file.py    reads the lines of a trace
story.py         finds the exchanges of one transactional id
fencing.py       judges why it was fenced
markers.py       looks for its markers in the logs of the partitions
lanes.py         arranges rows; lanes_text.py and lanes_svg.py draw them
"""

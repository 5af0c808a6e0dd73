"""For tests of other people: a broker inside a Python program, and the pytest plugin."""

"""For tests of other people: a broker inside a Python program, and fixtures for pytest."""

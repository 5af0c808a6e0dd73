"""For users' tests: a broker inside a Python program, and pytest fixtures."""

"""The command line: one module per noun, and no logic.

`serve` is parsed without typer and rich, because importing them takes longer than starting the
broker.
"""

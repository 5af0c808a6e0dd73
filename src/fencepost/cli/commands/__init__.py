"""The commands, one module or folder per noun. `app.py` puts them together."""

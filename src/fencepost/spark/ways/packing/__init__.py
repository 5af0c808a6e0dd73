"""Rows into record batches.

rows.py       the columns of the sink, as expressions and Arrow batches
packer.py     packs the rows of one task, by one of two loops
by_record.py  the partition of a row; and record by record: small batches, rows with headers
by_column.py  column by column, compiled: large batches, in memory that is reused
"""

"""Rows into record batches.

rows.py       the columns of the sink, as expressions and Arrow batches
placement.py  the partition of a row, as Kafka's own producer chooses it
packer.py     packs the rows of one task, by one of two loops
by_record.py  record by record: small batches, and rows with headers
by_column.py  column by column, compiled: large batches, in memory that is reused
"""

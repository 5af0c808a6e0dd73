"""The messages of Kafka, one module per API, made by `tools/fold_schema.py` from kio's schema."""

"""Refunds as a declarative pipeline: the query of `spark/pipeline.py`, run by `spark-pipelines`.

    pip install 'fencepost[spark,connect]'
    python -m fencepost_examples.refunds.pipeline refunds --bootstrap-servers localhost:9092
    cd refunds && spark-pipelines run

The first command creates a project of two files: the spec, with the brokers and a folder for
checkpoints, and a copy of `transformations/refunds.py`, which defines sink and flow.
"""

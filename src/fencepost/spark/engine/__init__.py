"""What the room knows of Spark's engine: its settings, hosts, batches and checkpoints."""

"""Commands of fencepost beside Kafka's own tools."""

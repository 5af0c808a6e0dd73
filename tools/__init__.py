"""Development tools: Apache Kafka for comparison, server processes, generated files."""

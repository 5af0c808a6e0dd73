"""What development needs beside the program: Apache Kafka next door, processes, generated files."""

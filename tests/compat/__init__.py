"""fencepost and Apache Kafka side by side.

Every test here runs against real processes: one Apache Kafka broker and one fencepost broker for
the whole session, and one Java virtual machine in which Kafka's own tools and our Java programs
run. A test that takes `side` runs on both brokers with the same expectations, so Apache Kafka
itself shows whether the expectation is right. Java and Maven are needed (`make compat`).
"""

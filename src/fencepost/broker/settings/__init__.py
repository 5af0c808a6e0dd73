"""Settings: their tables, the sources of their values, and how clients describe and alter them.

tables.py          every supported broker and topic setting, and why others are ignored
kinds.py           the class of a setting: a typed attribute with Kafka's name, a default, a check
config.py          the configuration of one broker, and the precedence of its sources
properties.py      the syntax of Java's .properties files
listener.py        addresses as Kafka writes them
views.py           settings as DescribeConfigs returns them
changes.py         AlterConfigs and IncrementalAlterConfigs
loggers.py         the broker's loggers, which clients describe and alter like settings
"""

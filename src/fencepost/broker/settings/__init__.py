"""Settings: which ones there are, where their values come from, and how clients see and change them.

tables.py          every broker and topic setting that fencepost honours, and why others are ignored
kinds.py           what a setting is: a typed attribute with Kafka's name, a default and a check
config.py          the configuration of one broker: which of several sources wins
properties.py      the syntax of Java's .properties files
listener.py        addresses as Kafka writes them
views.py           settings as DescribeConfigs shows them
changes.py         AlterConfigs and IncrementalAlterConfigs: checked as a whole, or refused
groups.py, client_metrics.py, loggers.py
                   the settings of the other resource types
"""

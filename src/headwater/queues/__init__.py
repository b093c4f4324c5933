"""Queues: workers share the records of a topic message by message; what they do about them are records of the log too."""

"""Ordered streams: whose turn it is, and the results of a stream in order."""

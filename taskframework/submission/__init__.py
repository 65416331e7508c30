"""The way in: a request becomes a stored task, and a stored task a message."""

"""The HTTP interface: a way to submit tasks, look at them and operate them. It decides nothing itself."""

"""The stores that keep all tasks: the port in `base`, and an adapter for each database."""

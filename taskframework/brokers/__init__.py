"""How messages travel: the port in `base`, and an adapter for each broker."""

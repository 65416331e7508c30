"""Where truth lives: the port in `base`, and an adapter for each database."""

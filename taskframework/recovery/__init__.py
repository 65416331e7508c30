"""The repairs: any process finds interrupted work by its due time and continues it."""

"""The repairs: what was interrupted is found by its due time and taken up again, by any process."""

"""What the author of a task writes against."""

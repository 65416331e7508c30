"""The classes that the author of a task uses."""

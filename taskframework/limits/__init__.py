"""What keeps a task from beginning: pauses."""

"""What keeps a task from beginning: pauses, and limits over all workers."""

"""The reasons that keep a task from beginning: pauses, and limits over all workers."""

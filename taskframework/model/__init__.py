"""Pure data and pure rules: what a task is and how it may move. Nothing here does I/O or reads a clock."""

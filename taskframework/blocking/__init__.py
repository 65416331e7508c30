"""The framework for programs without asyncio: the same calls, which block."""

"""The framework for programs without asyncio."""

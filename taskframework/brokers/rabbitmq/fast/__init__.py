"""The fast path: messages read from the socket before the driver sees them, and written beside it.

It is a guest of the driver: see `wire.py` for what proves at each channel that both still fit together.
"""

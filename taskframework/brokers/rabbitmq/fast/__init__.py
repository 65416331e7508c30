"""The fast path: reads messages from the socket before the driver sees them, and writes messages beside the driver.

It depends on how the driver works: `wire.py` says which proof each channel must give that both still fit together.
"""

"""Puts the parts of a process together, and is the only place that names concrete adapters.

What needs only the store is in `store_services`, which imports no more than that; the rest of a process in `process`.
Who listens to what, in order, is the list in `listeners`.
"""

"""Puts the parts of a process together, and is the only place that names concrete adapters.

Services that need only the store are built in `store_services`, which imports nothing more than these need; `process`
builds the other services of a process. `listeners` has the list of all listeners with their events, in order.
"""

"""Turns the outcome of an attempt into the next state of its task, such as COMPLETED, RETRYING or FAILED. Only this
sub-package does so.
"""

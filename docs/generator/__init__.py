"""The pages of docs/reference, made from the code, and the pictures of docs/concepts.md.

A module makes one page. `python -m docs.generator` writes them all, as `make docs` does; a test holds that they
are current.
"""

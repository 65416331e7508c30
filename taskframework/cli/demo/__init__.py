"""The demo job: a digest of text files."""

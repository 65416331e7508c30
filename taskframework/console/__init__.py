"""The console: pages for people. They use only the public HTTP interface."""

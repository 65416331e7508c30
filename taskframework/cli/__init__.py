"""The command line: a way to call all operations of the framework. It decides nothing itself."""

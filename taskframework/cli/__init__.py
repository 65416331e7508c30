"""The command line: a way to call everything that the framework does. It decides nothing itself."""

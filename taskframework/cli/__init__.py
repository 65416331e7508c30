"""The command line: a door to everything the framework does. It decides nothing itself."""

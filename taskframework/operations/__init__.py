"""What an operator may do. The HTTP interface and the command line are two doors to it."""

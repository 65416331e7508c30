"""The operations of an operator. The HTTP interface and the command line both call them."""

"""An installation at an address: what commands ask of a store, asked of its HTTP interface."""

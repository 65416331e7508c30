"""An installation at an address: commands call its HTTP interface instead of a store."""

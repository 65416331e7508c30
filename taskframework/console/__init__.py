"""The console: pages for people, which know no more of the installation than the public HTTP interface tells them."""

"""Other libraries' names for this package's policies and loss scales; one file per API."""

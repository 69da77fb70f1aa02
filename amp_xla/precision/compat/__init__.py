"""Other libraries' names on this package's policies and loss scales; one file a foreign API."""

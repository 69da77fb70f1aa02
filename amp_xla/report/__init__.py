"""The report of runs. Run folders are read as data: no code from them is executed."""

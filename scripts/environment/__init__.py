"""Which Python runs a command, and the environment it runs in: `make` asks, this answers.

Standard library only, because it runs before anything is installed. `scripts/environment.sh` finds
a Python to start it with.
"""

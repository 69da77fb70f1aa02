"""Signals, exit codes, output and durable files of every program."""

"""What every process of ours needs: command line, signals, exit codes, files that survive."""

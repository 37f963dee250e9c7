"""`python -m episode` is the command line."""

from episode.cli import main

main()

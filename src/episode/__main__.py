"""`python -m episode` is the command line."""

from episode.cli.main import main

main()

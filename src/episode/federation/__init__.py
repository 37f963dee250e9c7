"""One round: what a worker does, how a round is played, who takes part, what must be kept."""

"""Theorem 1 and the complexity table of the paper as calculators: arithmetic only."""

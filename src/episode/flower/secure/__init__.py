"""Secure aggregation: the server learns sums over a cohort, and nothing else of a single site."""

"""Data: where they are stored, how they are distributed to clients, how batches are drawn."""

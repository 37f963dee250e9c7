"""Data: how it is dealt out to clients, and how a client's batches are drawn."""

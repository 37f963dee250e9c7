"""Measure a model's loss and its clients' data, and recommend how to train on them."""

"""Measures what a model's loss and its clients' data are like, and says what follows."""

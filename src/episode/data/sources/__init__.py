"""Datasets in their official formats: found in a folder or archive, read, fetched, checked."""

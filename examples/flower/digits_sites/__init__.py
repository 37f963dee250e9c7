"""Digits at sites that hold different labels."""

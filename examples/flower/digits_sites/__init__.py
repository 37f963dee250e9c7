"""Train on digits at sites that hold different labels."""

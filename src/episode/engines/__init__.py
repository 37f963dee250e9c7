"""Where clients run: each module offers the one verb, `average`."""

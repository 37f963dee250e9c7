"""From a config (or a model and its clients) to a run: its rounds, its folder, its result."""

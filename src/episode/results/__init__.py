"""Tables, figures and reports of runs, read from their folders without any training code."""

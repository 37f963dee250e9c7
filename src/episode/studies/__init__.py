"""Studies made of many runs: grids, sweeps over several processes, and tuning."""

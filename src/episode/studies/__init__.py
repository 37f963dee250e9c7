"""Many runs: grids, sweeps over processes, tuning."""

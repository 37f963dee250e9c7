"""One round of federated training: workers, cohorts, means, state and checkpoints."""

"""`maya exec` and `maya shell`: any command with virtual GPUs below it, and a prediction of every job that it runs."""

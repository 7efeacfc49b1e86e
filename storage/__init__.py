"""What lies on a disk or behind a URL: run folders, files, checkpoints, stores, metrics. No training."""

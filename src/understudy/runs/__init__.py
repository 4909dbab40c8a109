"""The life around a run: logs, progress, checkpoints."""

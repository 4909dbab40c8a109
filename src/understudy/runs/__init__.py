"""The life around a run: logs, progress, plots, checkpoints."""

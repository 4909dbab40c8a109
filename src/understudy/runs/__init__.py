"""The outer loop of training, its log, progress and checkpoints."""

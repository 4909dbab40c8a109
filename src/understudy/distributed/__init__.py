"""Training on several processes: collectors, gradient workers and episode runners on Ray. No module
imports Ray before a cluster is asked for."""

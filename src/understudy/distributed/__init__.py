"""Beyond one process: collectors and gradient workers on Ray. Nothing here imports Ray until a
cluster is asked for."""

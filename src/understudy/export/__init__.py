"""Policies for other programs: the graph of a policy, and ONNX."""

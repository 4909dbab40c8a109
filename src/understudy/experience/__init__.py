"""What happened, kept for learning. No losses here."""

from understudy.experience.ring import Ring, add, create, num_stored, sample, size_in_bytes

__all__ = ["Ring", "add", "create", "num_stored", "sample", "size_in_bytes"]

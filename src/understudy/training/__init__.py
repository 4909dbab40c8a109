"""The loop: collect, update, evaluate; on the host or on the device, for many seeds at once."""

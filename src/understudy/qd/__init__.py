"""Quality-diversity: not one best policy, but the best of every kind."""

"""Quality-diversity: the best policy of every behavior instead of a single best one."""

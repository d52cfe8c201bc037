"""Words: the ``brim`` command, one file per verb. The only place that prints."""

"""The ``brim`` command, one file per verb. Only this package prints."""

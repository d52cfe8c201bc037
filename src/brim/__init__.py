"""brim keeps shared GPU clusters full: a twin of your cluster, a live scheduler, and elastic training."""

__version__ = "0.1.0"

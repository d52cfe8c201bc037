"""Data in: readers of published and one's own traces, a generator, transforms, and a summary of what is in a trace."""

from brim.traces.own import write
from brim.traces.reading import read
from brim.traces.report import ReadReport

__all__ = ["ReadReport", "read", "write"]

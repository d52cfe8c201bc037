"""Read, generate, transform, write and summarise traces of jobs."""

from brim.traces.anonymise import anonymise, own_key
from brim.traces.doubts import absent_types, doubts
from brim.traces.own import write
from brim.traces.reading import read
from brim.traces.report import ReadReport
from brim.traces.summary import TraceSummary, summary
from brim.traces.synth import synthesize
from brim.traces.transform import limit, offered_load, resample, scale_load, since

__all__ = [
    "ReadReport",
    "TraceSummary",
    "absent_types",
    "anonymise",
    "doubts",
    "limit",
    "offered_load",
    "own_key",
    "read",
    "resample",
    "scale_load",
    "since",
    "summary",
    "synthesize",
    "write",
]

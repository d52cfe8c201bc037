"""From a trace to an answer: would another order have helped on this cluster?"""

from brim import traces
from brim.core.cluster import parse_cluster
from brim.policies.presets import PRESETS
from brim.reports.summary import summarise
from brim.sim.twin import replay

cluster = parse_cluster("20x8xV100")
trace = traces.synthesize("philly", jobs=1_000, seed=1, cluster=cluster, load=0.7)
for one in summarise(replay(trace, cluster, PRESETS[name]) for name in ("fifo", "backfill", "srtf")):
    print(f"{one.policy:9} mean JCT {one.metrics.jct_mean_s / 3600:5.1f} h, {one.jct_ratio:.2f} x the lower bound")

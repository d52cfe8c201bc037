"""AITurbo's parts for jobs of a minute instead of hours: rounds five seconds apart, and a first look of ten."""

from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.order.borda import RemainingOrAttained
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.size.exchange import UnitExchange
from brim.policies.sockets import Policy

policy = Policy(
    name="aiturbo-seconds", order=RemainingOrAttained(first_core_s=150.0), size=UnitExchange(),
    place=WorkersAndServers(), feed=Even(), fill=NoFill(), period_ms=5_000, source="aiturbo, at another scale",
)

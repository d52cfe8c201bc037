"""The compiled event loops of the twin, for policies of shipped parts that keep the size of every job.

``queues`` serves policies whose order is fixed at submission and that interrupt no job: it keeps the queue and the free
GPUs between rounds. ``loop`` serves every other order that brim ships: it runs whole rounds, with the walk of the place
parts. ``eligible`` says which loop may run a replay, if any. docs/decisions/0005 gives the reasons.
"""

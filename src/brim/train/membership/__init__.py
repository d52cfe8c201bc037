"""Which ranks belong to the job at present: the supervisor's commands, the rendezvous, the process group."""

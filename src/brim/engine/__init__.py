"""One round: snapshot, five decisions, plan, checked actions; both drivers use it.

It reads no clock and draws no random numbers, and it does no I/O while deciding: a driver passes the time, and the
journal writes to the sink that the driver gave it.
"""

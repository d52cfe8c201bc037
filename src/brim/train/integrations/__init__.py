"""Preemption and exact resume for the training loops of other libraries; users import `brim.train.callbacks`.

One module per library, and three that they share: `handshake` receives the request to stop the job and makes all ranks
stop after the same step, `manifests` marks a checkpoint that another library wrote as complete, and `random_state`
saves the random generators. The number of ranks is fixed while such a loop runs.
"""

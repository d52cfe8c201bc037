"""Preemption and exact resume for training loops that are not ours; each needs its own library.

- `brim.train.callbacks.hugging_face`: ``Trainer(..., callbacks=[BrimCallback()])``
- `brim.train.callbacks.accelerate`: ``BrimLoop(accelerator, folder)`` for a loop by hand
- `brim.train.callbacks.lightning`: ``Trainer(..., callbacks=[BrimCallback(folder)])``

They share two modules: `handshake` receives the request to end the job and lets all ranks agree on the step, and
`sealed` marks a checkpoint that another library wrote as complete. The number of ranks is fixed while such a loop runs.
"""

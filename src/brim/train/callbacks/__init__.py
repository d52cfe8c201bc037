"""Preemption and exact resume for the training loops of other libraries, which must be installed.

- `brim.train.callbacks.hugging_face`: ``Trainer(..., callbacks=[BrimCallback()])``
- `brim.train.callbacks.accelerate`: ``BrimLoop(accelerator, folder)`` for your own loop with Accelerate
- `brim.train.callbacks.lightning`: ``Trainer(..., callbacks=[BrimCallback(folder)])``

They share two modules: `handshake` receives the request to stop the job and makes all ranks stop after the same step;
`sealed` marks a checkpoint that another library wrote as complete. The number of ranks is fixed while such a loop runs.
"""

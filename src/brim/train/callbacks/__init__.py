"""Preemption and exact resume for the training loops of other libraries, which must be installed.

- `brim.train.callbacks.hugging_face`: ``Trainer(..., callbacks=[BrimCallback()])``
- `brim.train.callbacks.accelerate`: ``BrimLoop(accelerator, folder)`` for your own loop with Accelerate
- `brim.train.callbacks.lightning`: ``Trainer(..., callbacks=[BrimCallback(folder)])``

These modules are the public import paths; the code is in `brim.train.integrations`.
"""

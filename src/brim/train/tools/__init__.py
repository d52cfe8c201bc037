"""Programs that run a script with an observer: the rank side of `brim.train.check`, and `brim profile`."""

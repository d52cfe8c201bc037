"""Many storms, more than fit into a run of the tests: ``make storms``.

Every script sets its learning rate by hand, evaluates on rank 0 and keeps the best value so far. First scripts of grow,
shrink, kill -9 of a rank or of the whole gang, preempt-and-resume and changes of the loader, over four models: all must
end with the bits of an undisturbed run, every sample used once per epoch. Then one storm of very many joins and leaves
in a single gang, which must neither hang nor change a bit.
"""

import argparse
import collections
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from brim.train.data.ledger import verify
from tests import zygotes
from tests.elastic.storm import JOB, random_events, storm

SAMPLES, STEPS_PER_EPOCH = 78, 5
MODELS = ("mlp", "conv", "transformer", "wide")
"""With dropout, with batch-norm, with AdamW and clipping, with 50 MB of gradients."""
WIDE_PART = 5
"""The last of them does a fifth of the steps, each of which takes so much longer."""
KINDS = ("resize", "resize", "resize", "kill", "kill", "preempt", "loader", "crash")
PAUSE_S = 0.01
LOOP = ("--rate", "begins", "--evaluate")
"""A learning rate set by hand in every step, evaluation on rank 0, and the best value so far."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", type=int, default=50)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--events", type=int, default=1000, help="of the one long storm; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="storms-"))
    bad = 0
    with zygotes.shared(folder) as zygote:
        steps = {model: options.steps // (WIDE_PART if model == "wide" else 1) for model in MODELS}
        expected = {model: undisturbed(folder, model, steps[model]) for model in MODELS}
        for model in MODELS:
            for ranks in (1, 2, 4):
                place = new(folder, f"{model}{ranks}")
                weather = storm(place, [], *words(model, steps[model]), ranks=ranks, zygote=zygote)
                bad += not said(f"{model} on {ranks}", weather, expected[model])
        total = collections.Counter()
        for seed in range(options.seed, options.seed + options.scripts):
            dice, model = random.Random(seed), MODELS[seed % len(MODELS)]
            events = random_events(seed, steps[model] - 5, dice.randrange(3, 12), kinds=KINDS)
            ranks, place = dice.choice((1, 2, 4)), new(folder, f"s{seed}")
            weather = storm(
                place, events, *words(model, steps[model]), "--checkpoint", place / "saved", "--loader-workers",
                dice.randrange(3), ranks=ranks, zygote=zygote, replace=20, timeout_s=240,
            )  # fmt: skip
            total.update(event.what for event in weather.done)
            bad += not said(f"script {seed}: {model} from {ranks}", weather, expected[model])
        sys.stdout.write(f"{options.scripts} scripts of {options.steps} steps: {dict(total)}, {bad} with other bits\n")
        if options.events:
            bad += not long_storm(folder, zygote, options)
    shutil.rmtree(folder)
    sys.stdout.write(f"{time.monotonic() - began_s:.0f} s\n")
    return int(bad > 0)


def long_storm(folder, zygote, options):
    """Joins and leaves in one gang, one after the other; steps in between are few."""
    steps = 3 * options.events
    expected = undisturbed(folder, "conv", steps)
    drawn = options.events * 4 // 3  # a kill is refused where one rank is left
    events = random_events(options.seed, steps - 5, drawn, kinds=("resize", "resize", "kill"))
    weather = storm(
        new(folder, "long"), events, *words("conv", steps), ranks=2, zygote=zygote, replace=drawn,
        timeout_s=4 * options.events + 120,
    )  # fmt: skip
    counts = dict(collections.Counter(event.what for event in weather.done))
    refused, generations = weather.refused, weather.generations
    sys.stdout.write(f"long storm: {counts}, {refused} refused, {generations} generations in one gang\n")
    return said("long storm", weather, expected)


def words(model, steps):
    return "--epochs", steps // STEPS_PER_EPOCH, "--model", model, "--pause", PAUSE_S, *LOOP


def new(folder, name):
    place = folder / name
    place.mkdir()
    return place


def undisturbed(folder, model, steps):
    """What one process comes to, without brim around it."""
    place = new(folder, f"{model}-{steps}")
    command = [sys.executable, JOB, place, "--epochs", steps // STEPS_PER_EPOCH, "--model", model, *LOOP]
    subprocess.run([*map(str, command)], check=True, timeout=600)
    (answer,) = place.glob("*.json")
    return json.loads(answer.read_text())


def said(name, weather, expected):
    """Print one line; whether all is as it should be."""
    right = weather.code == 0 and weather.digests == {expected["digest"]}
    for answer in weather.answers:
        right &= (answer["samples"], answer["steps"]) == (expected["samples"], expected["steps"])
        right &= all(answer[what] == expected[what] for what in ("ledger", "rate", "best"))
        verify(answer["ledger"], SAMPLES)
    counts = " ".join(f"{n} {what}" for what, n in collections.Counter(event.what for event in weather.done).items())
    sys.stdout.write(
        f"{'equal ' if right else 'DIFFER'} {name}: {counts or 'undisturbed'}; {weather.refused} refused, "
        f"{weather.starts} starts, {weather.generations} generations, {weather.seconds:.0f} s\n"
    )
    if not right:
        sys.stdout.write(f"code {weather.code}, {weather.digests}\n{weather.stderr[-3000:]}\n")
    sys.stdout.flush()
    return right


if __name__ == "__main__":
    sys.exit(main())

"""Is it known which runs of AlgoPerf's competition end as predicted, by how much, and how well is their end known?

    python benchmarks/predictability.py DATA [--loss train_loss|validation_loss]      # two minutes of one core

DATA is a folder with ``curves/algoperf``. A run counts if it has eight losses. A prefix is a run of which a part is
seen; it is predictable if the curve through that part says the final loss within a tenth of the drop since 5 %
of the run. Prefixes with fewer than four losses are counted apart. In others the loss does not fall: nothing is said of
them, they count as called unpredictable, and that is what they are.

Families are five kinds of workloads. "Default" is the classifier that comes with brim, which has not seen any of these
runs. The five classifiers are trained on four families and asked about the fifth, each in turn. At submission there are
no losses: they are told optimizer and hyper-parameters, and asked whether the run will be predictable at 25 %.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from brim.beliefs.convergence import CannotSay, convergence
from brim.beliefs.predictability import CUT, default
from brim.beliefs.predictability_judging import (
    Scores,
    area,
    folds,
    left_out,
    left_out_scores,
    models,
    scores,
    strengths,
)
from brim.beliefs.predictability_training import Prefixes, TrainingRun, prefixes
from brim.core.arrays import BoolArray, FloatArray
from loss_curves import FIRST, Run, runs_of

PARTS: Final = (0.1, 0.25, 0.5)
SUBMITTED_FOR: Final = 0.25
"""Part of the run for which predictability is asked at submission."""
HALF: Final = 0.5
PRECISION: Final = 0.8
QUOTA: Final = 0.4
BINS: Final = 5


class At(NamedTuple):
    """The prefixes at one part of all runs, those at which the loss does not fall the last.

    Attributes:
        label: Whether each is predictable (M,).
        family: (M,).
        default: Probability that the default classifier gives, 0 for the last (M,).
        features: Of the others.
        known: How many others there are.
    """

    label: BoolArray
    family: Any
    default: FloatArray
    features: FloatArray
    known: int

    def judge(self, name: str, said: FloatArray) -> Scores:
        """Scores of what was said of the others; the last are called unpredictable."""
        rest = np.full(len(self.label) - self.known, said.min() - 1 if said.min() < 0 else 0.0)
        return scores(name, np.concatenate((said, rest)), self.label, self.family)


def at(found: Prefixes, part: float) -> At:
    """The prefixes at a part."""
    own = found.part == part
    silent = [family for family, of, why in found.silent if of == part and why is CannotSay.DOES_NOT_FALL]
    said = default().probability(found.features[own])
    return At(
        np.concatenate((found.is_predictable[own], np.zeros(len(silent), dtype=bool))),
        np.concatenate((found.family[own], np.array(silent, dtype=object))),
        np.concatenate((said, np.zeros(len(silent)))), found.features[own], int(own.sum()),
    )


def told_at_submission(row: dict[str, Any]) -> list[float]:
    """Optimizer and hyper-parameters of a run as numbers."""
    has = json.loads(row["hparams_json"])

    def first(*names: str, otherwise: float) -> float:
        return float(next((has[name] for name in names if has.get(name)), otherwise))

    submission = row["submission"]
    return [
        np.log10(abs(first("learning_rate", "eta_overrides", otherwise=1.0))),
        np.log10(first("one_minus_beta1", otherwise=1 - first("beta1", otherwise=0.9) + 1e-6)),
        np.log10(first("one_minus_beta2", otherwise=1 - first("beta2", otherwise=0.999) + 1e-6)),
        np.log10(first("weight_decay", "l2", otherwise=0.0) + 1e-6),
        first("warmup_factor", "warmup_steps_fraction", "warmup", otherwise=0.0),
        first("dropout_rate", otherwise=0.0), first("label_smoothing", otherwise=0.0), np.log10(row["step_hint"]),
        float(submission.startswith("schedule_free")), float(submission.startswith("lawa")),
        float(submission in {"shampoo_submission", "caspr_adaptive"}), float(row["framework"] == "jax"),
    ]


def line(one: Scores, *, judged: bool = True) -> str:
    """A row of a table."""
    cut = f"{one.balanced:>9.3f} {one.minority_f1:>6.3f}" if judged else f"{'-':>9} {'-':>6}"
    return (f"{one.name:<34} {one.auc[0]:.3f} ({one.auc[1]:.2f}-{one.auc[2]:.2f})   "
            f"{one.family_auc[0]:.3f} ({one.family_auc[1]:.2f}-{one.family_auc[2]:.2f}) {cut}")


def single(features: FloatArray, names: tuple[str, ...], prefix: At, *, on_others: bool) -> Scores:
    """The best feature by itself: chosen on all families, or for each family on the others."""
    label, family = prefix.label[: prefix.known], prefix.family[: prefix.known]
    said = np.zeros(len(label))
    for kind in sorted(set(family.tolist())) if on_others else [None]:
        known = family != kind if on_others else np.ones(len(label), dtype=bool)
        areas = [area(column[known], label[known]) - 0.5 for column in features.T]
        best = int(np.argmax(np.abs(areas)))
        ranked = np.argsort(np.argsort(features[:, best], kind="stable"), kind="stable") / len(label)
        asked = ~known if on_others else known
        said[asked] = (ranked if areas[best] > 0 else 1 - ranked)[asked]
    which = "of the others" if on_others else names[best]
    return prefix.judge(f"best feature ({which})", said)


def classifiers(found: Prefixes, rows: list[dict[str, Any]]) -> None:
    """Print tables of the five classifiers and of single features."""
    print(f"{'':<34} AUC together (95 %)  mean of families    balanced F1 rare")
    own = found.part == SUBMITTED_FOR
    told = np.array([told_at_submission(rows[run]) for run in found.run[own].tolist()])
    asked = [("submission", at(found, SUBMITTED_FOR), told, tuple("abcdefghijkl")),
             *((f"{part:.0%}", prefix := at(found, part), prefix.features, found.names) for part in PARTS)]
    for when, prefix, features, names in asked:
        print(f"-- at {when}: {len(prefix.label)} prefixes, {prefix.label.mean():.0%} predictable")
        label, family = prefix.label[: prefix.known], prefix.family[: prefix.known]
        if features is prefix.features:
            print(line(prefix.judge("default, has seen none", prefix.default[: prefix.known])))
        of = folds(features, label, family)
        for name, make in models().items():
            print(line(prefix.judge(name, left_out(make, of, label))))
        print(line(single(features, names, prefix, on_others=True), judged=False))
        if features is prefix.features:
            print(line(single(features, names, prefix, on_others=False), judged=False))


def repeats(found: Prefixes, rows: list[dict[str, Any]]) -> None:
    """Print how well runs are told apart of which the classifier has seen repeats: one study in five is left out."""
    columns = ("workload", "submission", "framework", "trial", "hparams_json")
    same = np.array(["|".join(str(rows[run][name]) for name in columns) for run in found.run.tolist()])
    study = np.array([rows[run]["study"] for run in found.run.tolist()])
    told = np.array([told_at_submission(rows[run]) for run in found.run.tolist()])
    for part in PARTS[:2]:
        own = found.part == part
        _, place, count = np.unique(same[own], return_inverse=True, return_counts=True)
        label, seen = found.is_predictable[own], count[place] > 1
        share = (np.bincount(place, label)[place] - label + 0.5) / count[place]
        print(f"{part:>5.0%} {seen.sum():>5} runs: share of predictable repeats {area(share[seen], label[seen]):.3f}")
        for which, features in (("losses alone", found.features[own]),
                                ("and submission", np.hstack((found.features[own], told[own])))):
            of = folds(features, label, study[own])
            said = {name: left_out_scores(make, of, label) for name, make in models().items()}
            said["forest and share"] = said["random forest"] + np.log(share / (1 - share))
            areas = {name: area(one[seen], label[seen]) for name, one in said.items()}
            print(f"{which:>20}: " + ", ".join(f"{name} {value:.3f}" for name, value in areas.items()))


def schedules(found: Prefixes, rows: list[dict[str, Any]]) -> None:
    """Print runs without a schedule of the learning rate beside those whose rate falls towards the planned end."""
    free = np.array([rows[run]["submission"].startswith("schedule_free") for run in found.run.tolist()])
    said, falls = default().probability(found.features), found.drop > 0
    error = (found.predicted - found.end) / np.where(falls, found.drop, 1)
    for family in sorted(set(found.family.tolist())):
        own = (found.part == SUBMITTED_FOR) & (found.family == family)
        cells = [f"{name} {some.sum()} runs, error {np.median(error[some & falls]):.2f}, predictable "
                 f"{found.is_predictable[some].mean():.2f}, said {said[some].mean():.2f}"
                 for name, some in (("without", own & free), ("with", own & ~free))]
        print(f"{family:<12} " + "; ".join(cells))


def calibration(found: Prefixes) -> None:
    """Print probabilities of the default beside the share that was predictable."""
    for part in PARTS:
        prefix = at(found, part)
        place = np.minimum((prefix.default * BINS).astype(int), BINS - 1)
        count = np.bincount(place, minlength=BINS)
        said, was = (np.bincount(place, of, BINS) / np.maximum(count, 1) for of in (prefix.default, prefix.label))
        cells = "  ".join(f"{a:.2f}: {b:.2f} ({n})" for a, b, n in zip(said, was, count, strict=True) if n)
        off = np.average(abs(said - was), weights=count)
        print(f"{part:>5.0%} said: was (prefixes) {cells}; mean difference {off:.3f}")


def ends(found: Prefixes, runs: list[Run]) -> None:
    """Print how well the end of runs is known that are called predictable at half."""
    own = np.flatnonzero(found.part == HALF)
    said, label = default().probability(found.features[own]), found.is_predictable[own]
    first, drop = np.isin(found.family[own], FIRST), found.drop[own]
    fit, newest = (np.where(drop > 0, np.abs(of[own] - found.end[own]) / np.where(drop > 0, drop, 1), np.inf)
                   for of in (found.predicted, found.newest))
    left, curve, plan = np.array([steps_left(runs[run]) for run in found.run[own].tolist()]).T
    right = [(left / 2 <= of) & (of <= left * 2) for of in (curve, np.minimum(curve, plan), plan)]
    cut = next(one for one in np.arange(0.3, 1.0, 0.01) if label[first & (said >= one)].mean() >= PRECISION)
    of_first = int(np.isin([run.family for run in runs], FIRST).sum())
    quota = said >= np.sort(said)[-int(QUOTA * len(runs))]
    everyone, counts = np.ones(len(own), dtype=bool), (of_first, len(runs) - of_first, len(runs))
    print(f"{cut:.2f} is the least probability right {PRECISION:.0%} of the times on the first: {', '.join(FIRST)}")
    print(f"{'':<34}median error of             steps left within a factor of 2 as the")
    print("called             families   of all  precision  curve  newest  below   curve, curve up to the plan, plan")
    for name, called in ((f"at least {CUT}", said >= CUT), (f"at least {cut:.2f}", said >= cut),
                         (f"{QUOTA:.0%} most probable", quota), ("any", everyone)):
        for families, among, count in zip(("first", "others", "all"), (first, ~first, everyone), counts, strict=True):
            some = called & among
            error, repeated = np.median(fit[some]), np.median(newest[some])
            within = ", ".join(f"{of[some].mean():.0%}" for of in right)
            print(f"{name:<18} {families:<9} {some.sum() / count:>7.0%} {label[some].mean():>10.3f} {error:>6.3f} "
                  f"{repeated:>7.3f} {1 - error / repeated:>6.0%}   {within}")


def steps_left(run: Run) -> tuple[float, float, float]:
    """Steps left at half to the loss of the end (infinite if it was below), as the curve says, as planned."""
    end, seen = run.loss[-1], int(np.searchsorted(run.step, HALF * run.step[-1], side="right"))
    now, curve = run.step[seen - 1], convergence(run.step[:seen], run.loss[:seen])
    reached = run.step[seen + int(np.argmax(run.loss[seen:] <= end))] - now
    said = np.inf if isinstance(curve, CannotSay) else curve.samples_left(end).value
    return (np.inf if run.loss[:seen].min() <= end else reached), said, run.step[-1] - now


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--loss", default="train_loss", choices=("train_loss", "validation_loss"))
    options = parser.parse_args()
    folder = options.data / "curves" / "algoperf"
    runs = runs_of(folder, options.loss)
    by_number = {row["run_id"]: row for row in pl.read_parquet(folder / "runs.parquet").iter_rows(named=True)}
    rows = [by_number[run.number] for run in runs]
    found = prefixes([TrainingRun(run.family, run.step, run.loss, run.step[-1]) for run in runs], PARTS)
    print(f"{options.loss}: {len(runs)} runs; nothing is said: " + ", ".join(
        f"{part:.0%} {sum(of == part and why is reason for _, of, why in found.silent)} times {reason}"
        for reason in (CannotSay.TOO_FEW, CannotSay.DOES_NOT_FALL) for part in PARTS))
    classifiers(found, rows)
    print("-- repeats of a configuration")
    repeats(found, rows)
    print("-- calibration of the default")
    calibration(found)
    print(f"-- with a schedule of the learning rate, and without, at {SUBMITTED_FOR:.0%}")
    schedules(found, rows)
    print("-- the end of a run")
    ends(found, runs)
    print("-- features and the label: Pearson, Kendall, Spearman, importance in a forest (mean 1)")
    for row in strengths(found.names, found.features, found.is_predictable):
        print(f"{row.name:<16} {row.pearson:>6.2f} {row.kendall:>6.2f} {row.spearman:>6.2f} {row.importance:>5.2f}")


if __name__ == "__main__":
    main()

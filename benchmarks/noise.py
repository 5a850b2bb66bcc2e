"""How often does `analyzer compare --fail-if slower` fail on nothing, and find a slower step?

    python -m benchmarks.noise [--comparisons 200]

Takes what was recorded: the pairs of traces of two equal variants, recorded interleaved on one host
(`results/collector-interleaved-*.json`). A comparison draws pairs from one recording, each with the
sides at random: equals, compared. For the planted change the second side is slower by `--planted`.
`Found` is the share of comparisons whose bounds speak for a slower step.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence

from analyzer.reports.comparison.significance import of_pairs
from benchmarks.result_file import RESULTS, Result, environment, print_table, result, write

RECORDED = "collector-interleaved-*.json"
METRICS = ("step_unprofiled_paired_ratio", "step_profiled_paired_ratio")
SIZES = (10, 20, 40)


def recordings() -> Iterator[tuple[dict[str, str], list[float]]]:
    """The ratios of the pairs of each recording, with what they are."""
    for path in sorted(RESULTS.glob(RECORDED)):
        for row in json.loads(path.read_text(encoding="utf-8"))["results"]:
            if row["metric"] in METRICS:
                phase, metric = row["parameters"]["phase"], row["metric"]
                yield {"recording": path.stem, "phase": phase, "time": metric}, row["samples"]


def share_found(ratios: Sequence[float], planted: float, size: int, number: int) -> float:
    """Of so many comparisons, the share in which the step is said to be slower."""
    dice = random.Random(2603)
    found = 0
    for _ in range(number):
        drawn = dice.sample(ratios, size)
        shown = of_pairs([(r if dice.random() < 0.5 else 1 / r) * (1 + planted) for r in drawn])
        found += shown is not None and shown.low > 0
    return found / number


def main() -> None:
    """Compare, print and keep the shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--planted", type=float, default=0.05, help="the slower step, relative")
    args = parser.parse_args()
    results: list[Result] = []
    for what, ratios in recordings():
        for size in SIZES:
            for planted in (0.0, args.planted):
                share = share_found(ratios, planted, size, args.comparisons)
                parameters = {"system": "hostbound", **what, "pairs": size, "planted": planted}
                results.append(result("found", "share of comparisons", parameters, [share]))
    print_table(results)
    write("noise", "recorded-h200", environment("numpy"), results)


if __name__ == "__main__":
    main()

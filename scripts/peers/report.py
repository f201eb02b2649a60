"""The table and the goals, from the figures of one run."""

from typing import Any

OURS = "andrea"
_TIMES = ("first_token_32", "prefill_128", "prefill_1024", "prefill_8x128")
# (figure, precision, factor of the best peer, whether more is better), as the project set them.
_GOALS = (
    ("decode", "int8", 1.4, True),
    ("first_token_32", "int8", 0.8, False),
    ("prefill_128", "int8", 0.85, False),
    ("prefill_1024", "int8", 0.75, False),
    ("prefill_8x128", "int8", 0.8, False),
    ("peak", "int8", 0.9, False),
    ("decode", "int4", 1.4, True),
    ("prefill_128", "int4", 0.7, False),
    ("prefill_1024", "int4", 0.7, False),
    ("peak", "int4", 0.8, False),
)
_NEAR = 4.0
"""A peer counts for a goal if its divergence from fp32 is at most so many times ours; the others are listed alone."""
_LARGEST_KL = {"int8": 1.5e-4, "int4": 4.1e-3}
_SHOWN = {"kl_mean": ".2e"}
"""How these are written; the others with one decimal."""


def goals_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Each goal with our figure, the best peer's, their ratio, and whether it is met; those that were measured."""
    rows = [row for row in document["contenders"] if not row["problem"]]
    found = []
    for figure, precision, factor, more in _GOALS:
        own_rows = [row for row in rows if row["precision"] == precision]
        figures = {row["name"]: {**row["medians"], **row["accuracy"].get("trained", {})} for row in own_rows}
        farthest = _NEAR * figures.get(OURS, {}).get("kl_mean", float("inf"))
        values = {
            name: own[figure]
            for name, own in figures.items()
            if figure in own and (name == OURS or own.get("kl_mean", 0.0) <= farthest)
        }
        ours = values.pop(OURS, None)
        if ours is None or not values:
            continue
        best = (max if more else min)(values, key=lambda name: values[name])
        found.append(_goal(figure, precision, ours, (best, values[best]), factor, more=more))
    for row in rows:
        if row["name"] == OURS and row["precision"] in _LARGEST_KL and "trained" in row["accuracy"]:
            bound = ("the goal itself", _LARGEST_KL[row["precision"]])
            kl = row["accuracy"]["trained"]["kl_mean"]
            found.append(_goal("kl_mean", row["precision"], kl, bound, 1.0, more=False))
    return [*found, *_bandwidth_goal(document)]


def _goal(
    figure: str, precision: str, ours: float, best: tuple[str, float], factor: float, *, more: bool
) -> dict[str, Any]:
    """``best``: whose figure it is held against, and that figure; ``more``: whether more is better."""
    ratio = ours / best[1]
    return {
        "figure": figure,
        "precision": precision,
        "ours": ours,
        "best_peer": best[0],
        "best": best[1],
        "ratio": ratio,
        "goal": factor,
        "met": ratio >= factor if more else ratio <= factor,
    }


def _bandwidth_goal(document: dict[str, Any]) -> list[dict[str, Any]]:
    """fp32 decoding against what reading the weights once a token allows on this machine: at least 90 % of it."""
    rate = {
        row["precision"]: row["medians"]["decode"]
        for row in document["contenders"]
        if row["name"] == OURS and not row["problem"]
    }
    if "fp32" not in rate:
        return []
    limit = document["limits"]["read_bytes_s"] / document["decoded_bytes"]["fp32"]
    return [_goal("decode", "fp32", rate["fp32"], ("read bandwidth / weight bytes", limit), 0.9, more=True)]


def markdown(document: dict[str, Any]) -> str:
    """The whole run as Markdown: conditions, figures, goals."""
    machine, limits, trained = document["machine"], document["limits"], document["trained"]
    before, after = document["load_before"][0], document["load_after"][0]
    lines = [
        "# Against the peers, in one run",
        "",
        "Made by `scripts/bench_peers.py`; do not edit. ANDREA-120M with seeded random weights, the same for all; "
        f"{document['threads']} threads, batch 1 unless stated, warm, each contender in a process of its own, medians "
        f"of {document['rounds']} alternating rounds. A prompt's time is that to its next-token logits; 1,024 means "
        "1,023 tokens, which leaves the place for the next one. Prompts up to 128 tokens are taken twice in a row, and "
        "the second time counts. Decoding: prompt 32, then 128 tokens, 127 / (t(128) − t(1)). Memory is the largest "
        "resident size over all of it. What the precision costs is "
        f"measured after {trained['prompts']} prompts of 1 to {trained['longest']} tokens of held-out text on the "
        f"trained {trained['checkpoint']} (KL in nats, the share of equal first choices, both against torch in fp32), "
        "and as the largest difference of any logit on the seeded weights.",
        "",
        f"{document['date']}, {machine['cpu']} ({machine['flags']}), {machine['usable_cores']} cores, "
        f"{machine['system']}. Load average before {before:.2f}, after {after:.2f}; {document['minutes']:.1f} minutes.",
        f"Medians of all rounds: this machine reads {limits['read_bytes_s'] / 1e9:.1f} GB/s and multiplies "
        f"{limits['fp32_flops'] / 1e9:.0f} GFLOP/s in fp32, {limits['int8_ops'] / 1e9:.0f} GOP/s in int8.",
        "",
        "| contender | precision | first token (32) ms | prefill 128 ms | prefill 1024 ms | 8 × 128 ms | "
        "decode tok/s | load s | peak MB | trained: KL to fp32 | trained: top-1 | max abs Δlogit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in document["contenders"]:
        if row["problem"]:
            lines.append(f"| {row['name']} | {row['precision']} | {row['problem']} | | | | | | | | | |")
            continue
        medians = row["medians"]
        times = " | ".join(f"{medians[name]:.1f}" for name in _TIMES)
        lines.append(
            f"| {row['name']} | {row['precision']} | {times} | {medians['decode']:.1f} | {row['load_s']:.2f} | "
            f"{medians['peak'] / 1e6:.0f} | {_accuracy(row)} |"
        )
    lines += [
        "",
        "| goal | ours | best peer | ratio | goal | |",
        "|---|---|---|---|---|---|",
        *(
            f"| {goal['precision']} {goal['figure']} | {_shown(goal, 'ours')} | {_shown(goal, 'best')} "
            f"({goal['best_peer']}) | {goal['ratio']:.2f} | {goal['goal']} | {'met' if goal['met'] else 'not met'} |"
            for goal in document["goals"]
        ),
        "",
        "Versions: "
        + ", ".join(sorted({f"{k} {v}" for row in document["contenders"] for k, v in row["versions"].items()}))
        + ".",
    ]
    if document["not_prepared"]:
        lines += ["", "Not measured: " + "; ".join(f"{k}: {v}" for k, v in document["not_prepared"].items())]
    return "\n".join(lines) + "\n"


def _shown(goal: dict[str, Any], which: str) -> str:
    return format(goal[which], _SHOWN.get(goal["figure"], ",.1f"))


def _accuracy(row: dict[str, Any]) -> str:
    """Three cells: KL and first choices on the trained model, the largest difference on the seeded one."""
    trained, seeded = row["accuracy"].get("trained"), row["accuracy"].get("seeded")
    cells = [f"{trained['kl_mean']:.1e}", f"{trained['top1']:.2%}"] if trained else [row["accuracy_problem"], ""]
    return " | ".join([*cells, f"{seeded['max_abs']:.1e}" if seeded else ""])

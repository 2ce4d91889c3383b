"""Medians, ratios and verdicts out of the results of run.py."""

from statistics import median

from contenders import EFFICIENCY_GOAL, GOALS, MEMORY_GOALS, MEMORY_LIMIT_DEFAULT_MIB, MEMORY_LIMIT_MIB, OURS


def medians(result):
    """For each contender that ran: the medians of its wall and CPU seconds and of its peak in MiB."""
    return {name: {key: median(run[key] for run in runs) for key in ("wall", "cpu", "rss_mib")}
            for name, runs in result["runs"].items() if runs}


def ratio(result, peer, key="wall"):
    """The median over the rounds of ours / the peer's: what else the machine did in a round, both of them met."""
    pairs = list(zip(result["runs"].get(OURS, []), result["runs"].get(peer, [])))
    return median(ours[key] / theirs[key] for ours, theirs in pairs) if pairs else None


def verdicts(results):
    """Rows of (what is compared, goal, measured or None): first the peers, then ourselves."""
    inputs = results["inputs"]
    for (name, peer), goal in GOALS.items():
        if name in inputs:
            yield f"{name}: wall, ironroot / {peer}", goal, ratio(inputs[name], peer)
    for (name, peer), goal in MEMORY_GOALS.items():
        if name in inputs:
            yield f"{name}: peak memory, ironroot / {peer}", goal, ratio(inputs[name], peer, "rss_mib")
    for name, result in inputs.items():
        found = efficiency(result, results["machine"]["cores"])
        yield f"{name}: wall / the least possible", EFFICIENCY_GOAL, found and found["ratio"]
    for name, result in inputs.items():
        ours = medians(result).get(OURS)
        limit = MEMORY_LIMIT_MIB.get(name, MEMORY_LIMIT_DEFAULT_MIB)
        yield f"{name}: peak memory, MiB", limit, ours and ours["rss_mib"]


def word(goal, measured):
    if measured is None:
        return "not measured"
    return "reached" if measured <= goal else "missed"


def efficiency(result, cores):
    """The profiled run that is the median, what bounds it from below, and how far above that it was."""
    found = sorted((bounded(run, cores) for run in result["profile"]), key=lambda run: run["ratio"])
    return found[len(found) // 2] if found else None


def bounded(run, cores):
    name, slowest = next(iter(run["threads"].items()), ("", 0))
    # The kernel's own threads write what we gave them; on a tmpfs all of that is computing.
    cpu = run["cpu"] + run["server_cpu"] + run["write"]
    bounds = {f"thread {name}": slowest, "network alone": run["network"], "writing alone": run["write"],
              f"all CPU / {cores}": cpu / cores}
    bound = max(bounds, key=bounds.get)
    return {**run, "all_cpu": cpu, "bound": bound, "least": bounds[bound], "ratio": run["wall"] / bounds[bound]}

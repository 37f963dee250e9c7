"""Open the engine of a job on sites: the open one, or the one that sees sums only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from logging import INFO
from pathlib import Path

from flwr.serverapp import Grid
from flwr.supercore import log

from episode.federation.job import Job
from episode.federation.rounds import Plan
from episode.flower.owners import Owners
from episode.flower.secure.checks import check_cohorts, check_settings
from episode.flower.secure.server import SecureEngine
from episode.flower.server import FlowerEngine
from episode.flower.sites import Introduction, Limits, Sites
from episode.runs.observers import progress_line
from episode.runs.records import Observe, Record


def engine_on_sites(
    job: Job, grid: Grid, folder: Path | None = None, told: Callable[[int], str] = lambda _: ""
) -> closing[FlowerEngine]:
    """Meet the sites of a job, and return an engine on them to open.

    Args:
        job: What to play; its task may have no data.
        grid: Flower's connection to the nodes.
        folder: The run's folder, which says which nodes its partitions belong to.
        told: What each client is told of the sites' agreement.
    """
    x, _ = job.task.initial()

    def objection(site: Introduction) -> str | None:
        if (site.size, site.dtype) != (x.numel(), str(x.dtype)):
            return f"trains {site.size} numbers of {site.dtype}, not {x.numel()} of {x.dtype}"
        return None

    limits, algorithm = Limits.of(job.engine), job.plan.algorithm
    secure = bool(job.engine.secure)
    if secure:
        check_settings(algorithm, limits.min_replies, job.record.per_client)
        check_cohorts(job.plan, job.task.num_clients)
    owners = Owners.of(folder, limits.allow_takeover)
    sites = Sites(grid, limits, job.plan.seed, objection, algorithm, owners, told, secure)
    sites.meet(job.task.num_clients)
    kind = SecureEngine if secure else FlowerEngine
    return closing(kind(sites, algorithm, plan=job.plan))


def round_logger(plan: Plan) -> Observe:
    """Return an observer that writes a line about each round to the run's log."""

    def observe(record: Record) -> None:
        here, total = record["round"] + 1, plan.rounds_to_play
        log(INFO, "[ROUND %d/%d] %s", here, total, progress_line(record))

    return observe

"""Plays a plan to its end: records, evaluation, checkpoints, and resuming where it was killed."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from episode.engines.cluster import Cluster
from episode.engines.distributed import Distributed, Wish
from episode.engines.rendezvous import under_torchrun
from episode.engines.simulation import Simulation
from episode.errors import EpisodeError
from episode.runs.config import Experiment
from episode.runs.folder import RunFolder
from episode.runs.records import History, Observe, Record, Run, make_record
from episode.runs.checkpoints import Saves
from episode.federation import checkpoint
from episode.federation.protocols import Engine, Task
from episode.federation.rounds import Plan, Rounds, divergence
from episode.federation.state import ClientState, ServerState, Status
from episode.results import store


@dataclass(frozen=True)
class Job:
    """All that is needed to play a run; `config` and `identity` are what its folder is known by."""

    plan: Plan
    task: Task
    config: dict[str, Any]
    identity: str
    workers: int | None = None
    device: str = "cpu"
    evaluate_every: int = 1
    checkpoint_seconds: float = 30.0
    cluster: Cluster | None = None
    """The processes that play this run together; None for this one alone."""
    make_engine: Callable[[], Engine] | None = None
    """Where clients run neither here nor on a cluster."""
    make_rounds: Callable[[Plan, Task, Any], Rounds] = Rounds


def join(read: Callable[[], Experiment]) -> tuple[Experiment, Cluster | None]:
    """The experiment, and the processes that are about to run it together, if there are any.

    What keeps one process from reading it keeps all of them from starting.
    """
    try:
        experiment = read()
    except EpisodeError as error:
        if under_torchrun():
            Cluster.join({"error": str(error)}, timeout=60)
        raise
    engine = experiment.engine
    if engine.name != "distributed" and not under_torchrun():
        return experiment, None
    hello = {"config": experiment.to_dict()}
    return experiment, Cluster.join(hello, engine.timeout_seconds, engine.device)


def job_of(experiment: Experiment, cluster: Cluster | None = None) -> Job:
    """The job that a config describes, with its task built."""
    device = experiment.engine.device
    if cluster is not None and device == "cuda":
        device = f"cuda:{cluster.local_rank}"
    check_device(device)
    return Job(
        plan=experiment.plan(),
        task=experiment.task.build(experiment.seed, device),
        config=experiment.to_dict(),
        identity=experiment.id,
        workers=experiment.engine.workers,
        device=device,
        evaluate_every=experiment.record.evaluate_every,
        checkpoint_seconds=experiment.record.checkpoint_seconds,
        cluster=cluster,
    )


def check_device(device: str) -> None:
    """Refuses a device that torch does not have here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].split(":")[0].rstrip(".")[:80]
        raise EpisodeError(
            f"engine.device is {device!r}, which cannot be used here ({reason}): try 'cpu'."
        ) from None


def execute(
    job: Job,
    folder: Path | None = None,
    observe: Observe | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Plays the job from where its folder left off; calls `observe` with each round's record.

    Once `stop()` is true, the round under way is finished and saved, and KeyboardInterrupt raised.
    """
    with contextlib.ExitStack() as stack:
        if job.cluster is not None:
            stack.enter_context(job.cluster.together())
        files: RunFolder | None = None
        if folder is not None and (job.cluster is None or job.cluster.writes):
            files = stack.enter_context(RunFolder(folder, job.config, job.identity))
        return _Player(job, folder, files, observe, stop).play()


@dataclass
class _Player:
    job: Job
    folder: Path | None
    files: RunFolder | None
    """The folder, open, on the one process that writes it."""
    observe: Observe | None
    stop: Callable[[], bool] | None
    history: History = field(default_factory=History)
    saves: Saves | None = None
    saved_at: float = field(default_factory=time.monotonic)

    def play(self) -> Run:
        if self.files:
            self.files.forget_failure()
        ended = self._on_all(self.files.summary() if self.files else None)
        server, clients = self._stored(ended)
        if ended is not None:
            return self._read_back(server, ended)
        if self.files:
            self.history.extend(self.files.keep_rounds(server.round))
        engine = self._engine()
        try:
            engine.load_client_states(clients)
            return self._rounds(server, engine)
        except Exception as error:
            if self.files:
                with contextlib.suppress(OSError):  # a full disk may be why it failed
                    self.files.finish({"status": "failed", "reason": str(error)})
            raise
        finally:
            engine.close()

    def _stored(self, ended: Record | None) -> tuple[ServerState, Mapping[int, ClientState]]:
        """The state to go on from: a checkpoint, or the start."""
        found = None
        if self.folder is not None:
            diverged = ended is not None and ended["status"] == "diverged"
            path = self.folder / (store.LAST_FINITE if diverged else store.CHECKPOINT)
            self.saves = Saves(path, self.job.identity, self.job.device, self.job.cluster)
            found = self.saves.read()
        if found is None and ended is not None:
            raise EpisodeError(
                f"{self.folder} has a summary but no checkpoint: remove it to start afresh."
            )
        return found or (ServerState(*self.job.task.initial()), {})

    def _engine(self) -> Engine:
        task, algorithm, workers = self.job.task, self.job.plan.algorithm, self.job.workers
        if self.job.make_engine is not None:
            return self.job.make_engine()
        if self.job.cluster is None:
            return Simulation(task, algorithm, workers)
        return Distributed(task, algorithm, self.job.cluster, workers, self._wishes)

    def _on_all(self, summary: Record | None) -> Record | None:
        """What the writing process found, on every process."""
        cluster = self.job.cluster
        if cluster is None:
            return summary
        if cluster.writes:
            cluster.tell("ended", store.dumps(summary))
        found: Record | None = store.loads(cluster.hear("ended", 0))
        return found

    def _read_back(self, server: ServerState, ended: Record) -> Run:
        """A run that has ended: nothing to play; its model is written anew, in case of damage."""
        if self.files:
            self.history.extend(self.files.rounds())
            self.files.finish(ended, self._state_dict(server))
            if self.observe:
                self.observe(self.history[-1])
        return self._result(server, ended)

    def _rounds(self, server: ServerState, engine: Engine) -> Run:
        plan = self.job.plan
        rounds = self.job.make_rounds(plan, self.job.task, engine)
        notes: Callable[[], Record] = getattr(engine, "notes", dict)
        while server.round < plan.rounds_to_play:
            before = dataclasses.replace(server)
            telemetry = rounds.play(server)
            reason = divergence(server, telemetry)
            record = {**make_record(telemetry, server), **notes()}
            if reason is None and self._evaluation_is_due(server.round):
                record["metrics"] = dict(self.job.task.evaluate(server.x, server.buffers))
            self._write_down(record)
            if reason is not None:
                return self._end_diverged(before, server, reason)
            wishes = engine.wished if isinstance(engine, Distributed) else self._wishes()
            if wishes:
                self._save(server, engine)
            if Wish.STOP in wishes and server.round < plan.rounds_to_play:
                raise KeyboardInterrupt
        self._save(server, engine)
        return self._end(server, self._summary("finished", server))

    def _wishes(self) -> Wish:
        """What this process wants done after the round."""
        due = time.monotonic() - self.saved_at >= self.job.checkpoint_seconds
        due = due and (self.job.cluster is None or self.job.cluster.writes)
        stop = self.stop is not None and self.stop()
        return (Wish.CHECKPOINT if due else Wish.NONE) | (Wish.STOP if stop else Wish.NONE)

    def _evaluation_is_due(self, rounds_played: int) -> bool:
        plan, cluster = self.job.plan, self.job.cluster
        if cluster is not None and not cluster.writes:
            return False
        every = self.job.evaluate_every * plan.rounds_of_one_step
        return rounds_played == plan.rounds_to_play or bool(every and rounds_played % every == 0)

    def _write_down(self, record: Record) -> None:
        self.history.append(record)
        if self.files:
            self.files.append(record)
        if self.observe:
            self.observe(record)

    def _save(self, server: ServerState, engine: Engine) -> None:
        if self.saves and self.saves.round != server.round:
            if self.files:
                self.files.sync()
            self.saves.write(server, engine.client_states())
            self.saved_at = time.monotonic()

    def _end_diverged(self, before: ServerState, server: ServerState, reason: str) -> Run:
        """Ends with the last finite model, beside the checkpoint: that stays one to resume from.

        (Killed before the summary is there, the run plays on from the checkpoint, and diverges.)
        """
        if self.files:
            checkpoint.save(self.files.path / store.LAST_FINITE, before, {}, self.job.identity)
        summary = self._summary("diverged", server)
        summary["reason"] = f"{reason} in round {self.history[-1]['round']}"
        summary["global_norm"] = self.history[-1]["global_norm"]
        return self._end(before, summary)

    def _summary(self, status: Status, server: ServerState) -> Record:
        metrics: Record = next((r["metrics"] for r in self.history[::-1] if "metrics" in r), {})
        return {
            "status": status,
            "rounds": server.round,
            **dataclasses.asdict(server.counts),
            "loss": self.history[-1]["loss"],
            "metrics": metrics,
            **self._cluster_summary(),
        }

    def _cluster_summary(self) -> Record:
        cluster = self.job.cluster
        if cluster is None:
            return {}
        since_start = dataclasses.asdict(cluster.traffic)
        return {"cluster": {"ranks": cluster.size, "since_last_start": since_start}}

    def _end(self, server: ServerState, summary: Record) -> Run:
        if self.files:
            self.files.finish(summary, self._state_dict(server))
        return self._result(server, summary)

    def _state_dict(self, server: ServerState) -> dict[str, Tensor] | None:
        state_dict = getattr(self.job.task, "state_dict", None)
        return state_dict(server.x, server.buffers) if state_dict else None

    def _result(self, server: ServerState, summary: Record) -> Run:
        run = Run(summary["status"], self.history, summary, server.x)
        run.folder = self.folder
        install = getattr(self.job.task, "install", None)
        if install is not None:
            run.model = install(server.x, server.buffers)
        return run

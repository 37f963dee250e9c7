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
from torch import Tensor, nn

from episode.engines.simulation import Simulation
from episode.errors import EpisodeError
from episode.experiments.config import Experiment
from episode.experiments.folder import RunFolder
from episode.federation import checkpoint
from episode.federation.protocols import Engine, Task
from episode.federation.rounds import Plan, Rounds, Telemetry, divergence
from episode.federation.state import ClientState, ServerState, Status

Record = dict[str, Any]
Observe = Callable[[Record], None]


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


@dataclass
class Run:
    """What a run came to."""

    status: Status
    """finished, or diverged: then `x` and `model` are those of the last finite round."""
    history: History
    summary: Record
    x: Tensor
    folder: Path | None = None
    model: nn.Module | None = None


class History(list[Record]):
    """One record per round, in order: a list of dicts."""

    def frame(self) -> Any:
        """The records as a pandas DataFrame, the task's figures as columns of their own."""
        try:
            import pandas as pd
        except ImportError:
            raise EpisodeError("A DataFrame needs pandas: pip install pandas.") from None
        return pd.DataFrame(
            [{k: v for k, v in r.items() if k != "figures"} | r.get("figures", {}) for r in self]
        )


def job_of(experiment: Experiment) -> Job:
    """The job that a config describes, with its task built."""
    check_device(experiment.engine.device)
    return Job(
        plan=experiment.plan(),
        task=experiment.task.build(experiment.seed, experiment.engine.device),
        config=experiment.to_dict(),
        identity=experiment.id,
        workers=experiment.engine.workers,
        device=experiment.engine.device,
        evaluate_every=experiment.record.evaluate_every,
        checkpoint_seconds=experiment.record.checkpoint_seconds,
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
    if folder is None:
        return _Player(job, None, observe, stop).play()
    with RunFolder(folder, job.config, job.identity) as files:
        return _Player(job, files, observe, stop).play()


@dataclass
class _Player:
    job: Job
    files: RunFolder | None
    observe: Observe | None
    stop: Callable[[], bool] | None
    history: History = field(default_factory=History)

    def play(self) -> Run:
        if self.files:
            self.files.forget_failure()
            ended = self.files.summary()
            if ended is not None:
                return self._read_back(self.files, ended)
        server, clients = self._resume()
        engine = Simulation(self.job.task, self.job.plan.algorithm, self.job.workers)
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

    def _read_back(self, files: RunFolder, ended: Record) -> Run:
        """A run that has ended: nothing to play; its model is written anew, in case of damage."""
        source = files.last_finite if ended["status"] == "diverged" else files.checkpoint
        if not source.exists():
            raise EpisodeError(
                f"{files.path} has a summary but no checkpoint: remove it to start afresh."
            )
        server, _ = checkpoint.load(source, self.job.identity, self.job.device)
        self.history.extend(files.rounds())
        files.finish(ended, self._state_dict(server))
        if self.observe:
            self.observe(self.history[-1])
        return self._result(server, ended)

    def _resume(self) -> tuple[ServerState, Mapping[int, ClientState]]:
        server = ServerState(*self.job.task.initial())
        clients: dict[int, ClientState] = {}
        if self.files is None:
            return server, clients
        if self.files.checkpoint.exists():
            server, clients = checkpoint.load(
                self.files.checkpoint, self.job.identity, self.job.device
            )
        self.history.extend(self.files.keep_rounds(server.round))
        return server, clients

    def _rounds(self, server: ServerState, engine: Engine) -> Run:
        plan = self.job.plan
        rounds = Rounds(plan, self.job.task, engine)
        saved = time.monotonic()
        while server.round < plan.rounds_to_play:
            before = dataclasses.replace(server)
            telemetry = rounds.play(server)
            reason = divergence(server, telemetry)
            record = make_record(telemetry, server)
            if reason is None and self._evaluation_is_due(server.round):
                record["figures"] = dict(self.job.task.evaluate(server.x, server.buffers))
            self._write_down(record)
            if reason is not None:
                return self._end_diverged(before, server, reason)
            stopping = self.stop is not None and self.stop()
            if stopping or time.monotonic() - saved >= self.job.checkpoint_seconds:
                self._save(server, engine)
                saved = time.monotonic()
            if stopping and server.round < plan.rounds_to_play:
                raise KeyboardInterrupt
        self._save(server, engine)
        return self._end(server, self._summary("finished", server))

    def _evaluation_is_due(self, rounds_played: int) -> bool:
        plan = self.job.plan
        every = self.job.evaluate_every * plan.rounds_of_one_step
        return rounds_played == plan.rounds_to_play or bool(every and rounds_played % every == 0)

    def _write_down(self, record: Record) -> None:
        self.history.append(record)
        if self.files:
            self.files.append(record)
        if self.observe:
            self.observe(record)

    def _save(self, server: ServerState, engine: Engine) -> None:
        if self.files:
            self.files.sync()
            checkpoint.save(
                self.files.checkpoint, server, engine.client_states(), self.files.identity
            )

    def _end_diverged(self, before: ServerState, server: ServerState, reason: str) -> Run:
        """Ends with the last finite model, beside the checkpoint: that stays one to resume from.

        (Killed before the summary is there, the run plays on from the checkpoint, and diverges.)
        """
        if self.files:
            checkpoint.save(self.files.last_finite, before, {}, self.files.identity)
        summary = self._summary("diverged", server)
        summary["reason"] = f"{reason} in round {self.history[-1]['round']}"
        summary["global_norm"] = self.history[-1]["global_norm"]
        return self._end(before, summary)

    def _summary(self, status: Status, server: ServerState) -> Record:
        figures: Record = next((r["figures"] for r in self.history[::-1] if "figures" in r), {})
        return {
            "status": status,
            "rounds": server.round,
            **dataclasses.asdict(server.counts),
            "loss": self.history[-1]["loss"],
            "figures": figures,
        }

    def _end(self, server: ServerState, summary: Record) -> Run:
        if self.files:
            self.files.finish(summary, self._state_dict(server))
        return self._result(server, summary)

    def _state_dict(self, server: ServerState) -> dict[str, Tensor] | None:
        state_dict = getattr(self.job.task, "state_dict", None)
        return state_dict(server.x, server.buffers) if state_dict else None

    def _result(self, server: ServerState, summary: Record) -> Run:
        run = Run(summary["status"], self.history, summary, server.x)
        run.folder = self.files.path if self.files else None
        install = getattr(self.job.task, "install", None)
        if install is not None:
            run.model = install(server.x, server.buffers)
        return run


def make_record(telemetry: Telemetry, server: ServerState) -> Record:
    """One line of rounds.jsonl; counts and seconds are totals so far.

    Where the round was evaluated, the task's figures of x̄_{r+1} join it as `figures`.
    """
    metrics = telemetry.metrics
    count = len(metrics["loss"])
    return {
        "round": telemetry.round,
        "eta": float(telemetry.eta),
        "gamma": float(telemetry.gamma),
        "threshold": float(telemetry.gamma / telemetry.eta),
        "global_norm": None if telemetry.G_norm is None else float(telemetry.G_norm),
        "clipped": None if telemetry.clipped is None else bool(telemetry.clipped),
        "clipped_steps": sum(metrics["clipped"]) / count,
        "loss": sum(metrics["loss"]) / count,
        "largest_norm": _largest(metrics["largest_norm"]),
        "drift": _largest(metrics["drift"]),
        "cohort": telemetry.cohort,
        **dataclasses.asdict(server.counts),
    }


def _largest(values: list[float | None]) -> float | None:
    """The maximum; NaN if one is NaN, so that it is seen; None where nothing was measured."""
    known = [v for v in values if v is not None]
    return next((v for v in known if v != v), max(known, default=None))

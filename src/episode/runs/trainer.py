"""The one way to start a run: records, evaluation, checkpoints, and resuming after a kill."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from episode.engines import registry
from episode.engines.rendezvous import under_torchrun
from episode.errors import EpisodeError
from episode.federation import checkpoint
from episode.federation.job import EngineSettings, Job
from episode.federation.owners import Owners
from episode.federation.processes import Processes
from episode.federation.protocols import Engine, Evaluation, Request, Task
from episode.federation.rounds import Rounds, divergence
from episode.federation.state import ClientState, ServerState, Status
from episode.results import per_client, store
from episode.runs.building import build_task, check_device, check_holdout, client_names
from episode.runs.checkpoints import Checkpoints
from episode.runs.config import Experiment, identity_of
from episode.runs.folder import RunFolder
from episode.runs.records import STOP, History, Observe, Record, Run, client_line, make_record
from episode.tasks.settings import Share


@contextlib.contextmanager
def prepared(read: Callable[[], Experiment]) -> Iterator[tuple[Experiment, Job]]:
    """Read an experiment and build its job, together with the other processes of the run, if any.

    An error that keeps one process from starting is reported by all of them.

    Args:
        read: Returns the experiment.

    Yields:
        The experiment and its job, ready for `train`.
    """
    try:
        experiment = read()
    except EpisodeError as error:
        if under_torchrun():
            registry.join(EngineSettings(timeout_seconds=60), {"error": str(error)})
        raise
    processes = registry.join(experiment.engine, {"config": experiment.to_dict()})
    try:
        with processes.together():
            yield experiment, job_of(experiment, processes)
    finally:
        processes.leave()


def job_of(
    experiment: Experiment, processes: Processes | None = None, share: Share | None = None
) -> Job:
    """Build the job that an experiment describes, with its task or a share of it."""
    processes = processes or Processes()
    device = processes.device(experiment.engine.device)
    check_device(device)
    settings, seed = experiment.task, experiment.seed
    sizes = settings.sizes(seed) if processes.size > 1 else None
    owners = None if sizes is None else Owners(sizes, processes.size)
    if owners is not None:
        share = Share(owners.clients(processes.rank))
    task = build_task(experiment, device, share)
    if sizes is not None and len(sizes) != task.num_clients:
        raise EpisodeError(
            f"The task {experiment.task_name} has sizes of {len(sizes)} clients, but "
            f"{task.num_clients} clients: let its sizes(seed) return one number for each."
        )
    job = Job(
        plan=experiment.plan(),
        task=task,
        config=experiment.to_dict(),
        engine=dataclasses.replace(experiment.engine, device=device),
        record=experiment.record,
        processes=processes,
        owners=owners or owners_of(task, processes),
    )
    job.plan.check(job.task.num_clients)
    check_holdout(job.record, job.task)
    return job


def owners_of(task: Task, processes: Processes) -> Owners | None:
    """Return which process serves which client of a task that holds them all."""
    if processes.size == 1:
        return None
    return Owners([task.examples(c) for c in range(task.num_clients)], processes.size)


def train(
    job: Job,
    folder: Path | None = None,
    observe: Observe | None = None,
    stop: Callable[[], bool] | None = None,
    *,
    may_end: bool = False,
) -> Run:
    """Play a job to its end, from where its folder left off.

    Args:
        job: What to play.
        folder: Where the run is written; None writes nothing.
        observe: Called with the record of each round.
        stop: Once it returns true, the round under way is finished and saved, and
            KeyboardInterrupt is raised. The task's model then has the last x̄.
        may_end: Whether the run ends early if `observe` returns "stop" on the first process.

    Returns:
        The run, with its history and its final model.

    Raises:
        EpisodeError: The folder holds another run, or the run cannot go on.
        KeyboardInterrupt: `stop` asked for it.
    """
    job = dataclasses.replace(job, folder=folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(job.processes.together())
        files: RunFolder | None = None
        if folder is not None and job.processes.writes:
            files = stack.enter_context(RunFolder(folder, job.config, identity_of(job.config)))
        return _Training(job, files, observe, stop, may_end).play()


@dataclass
class _Training:
    """A run while it is played."""

    job: Job
    files: RunFolder | None
    """The open folder, on the one process that writes it."""
    observe: Observe | None
    stop: Callable[[], bool] | None
    may_end: bool
    history: History = field(default_factory=History)
    checkpoints: Checkpoints | None = None
    saved_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        task, secure = self.job.task, self.job.engine.secure
        self.keeps_clients = not secure and self.job.record.keeps_clients(task.num_clients)
        evaluates = self.keeps_clients and task.evaluates_clients
        self.evaluated: Sequence[int] = range(task.num_clients) if evaluates else ()
        self.history.client_names = client_names(task)

    def play(self) -> Run:
        if self.files:
            self.files.forget_failure()
        summary = self.files.summary() if self.files else None
        ended: Record | None = self.job.processes.value_of_first(summary)
        server, clients = self._stored(ended)
        if ended is not None:
            return self._read_back(server, ended)
        if self.files:
            self.history.extend(self.files.keep_rounds(server.round))
            self.history.client_lines = self.files.keep_clients(server.round, self.keeps_clients)
            if self.job.task.client_names:
                self.files.write_client_names(self.history.client_names)
            self.files.write_label_counts(self.job.task.label_counts)
        self.history.share(self.job.processes)
        try:
            with registry.opener_of(self.job)(self.job) as engine:
                engine.load_client_states(clients)
                return self._rounds(server, engine)
        except KeyboardInterrupt:
            self.job.task.install(server.x, server.buffers)
            raise
        except Exception as error:
            if self.files:
                with contextlib.suppress(OSError, EpisodeError):  # the disk may be full
                    self.files.finish({"status": "failed", "reason": str(error)})
            raise

    def _stored(self, ended: Record | None) -> tuple[ServerState, Mapping[int, ClientState]]:
        """Return the state to go on from: that of a checkpoint, or the initial one."""
        found = None
        folder = self.job.folder
        if folder is not None:
            diverged = ended is not None and ended["status"] == "diverged"
            path = folder / (store.LAST_FINITE if diverged else store.CHECKPOINT)
            check = self.files.check if self.files else lambda: None
            self.checkpoints = Checkpoints(path, self.job, check)
            found = self.checkpoints.read()
            if self.files:
                self.files.expected = self.checkpoints.records
        if found is None and ended is not None:
            raise EpisodeError(
                f"{folder} has a summary but no checkpoint: remove it to start afresh."
            )
        return found or (ServerState(*self.job.task.initial()), {})

    def _read_back(self, server: ServerState, ended: Record) -> Run:
        """Return a run that has ended; its model is written again in case the file is damaged."""
        if self.files:
            self.history.extend(self.files.rounds())
            self.history.client_lines = self.files.clients()
            self.files.check_summary(ended, self.history.client_names)
            self.files.finish(ended, self.job.task, server)
            if self.observe:
                self.observe(self.history[-1])
        self.history.share(self.job.processes)
        return self._result(server, ended, read_back=True)

    def _rounds(self, server: ServerState, engine: Engine) -> Run:
        plan = self.job.plan
        engine.own_requests = self._own_requests
        owners = self.job.owners
        rounds = Rounds(plan, self.job.task, engine, owners.sizes if owners else None)
        while server.round < plan.rounds_to_play:
            before = dataclasses.replace(server)
            telemetry = rounds.play(server)
            reason = divergence(server, telemetry, before)
            record = {**make_record(telemetry, server), **engine.notes()}
            found = Evaluation()
            if reason is None and self._evaluation_is_due(server.round):
                found = engine.evaluate(self.job.task, server.x, server.buffers, self.evaluated)
                record["metrics"] = found.metrics
            line = client_line(telemetry, found.clients) if self.keeps_clients else None
            wants_end = self._write_down(record, line)
            if reason is not None:
                return self._end_diverged(before, server, reason)
            if self.may_end and self._all_end(wants_end) and server.round < plan.rounds_to_play:
                return self._end_early(server, engine)
            requests = engine.requests()
            if requests:
                self._save(server, engine)
            if Request.STOP in requests and server.round < plan.rounds_to_play:
                raise KeyboardInterrupt
        self._save(server, engine)
        return self._end(server, self._summary("finished", server))

    def _all_end(self, wanted: bool) -> bool:
        """Whether the first process wants to end; all do the same, in the same round."""
        return bool(self.job.processes.from_first(b"end" if wanted else b""))

    def _end_early(self, server: ServerState, engine: Engine) -> Run:
        self._save(server, engine)
        summary = self._summary("finished", server)
        planned = self.job.plan.rounds_to_play
        summary["reason"] = f"stopped after {server.round} of {planned} rounds, as was asked"
        return self._end(server, summary)

    def _own_requests(self) -> Request:
        """Return what this process wants done after the round."""
        due = time.monotonic() - self.saved_at >= self.job.record.checkpoint_seconds
        wanted = Request.CHECKPOINT if due and self.job.processes.writes else Request.NONE
        return wanted | Request.STOP if self.stop is not None and self.stop() else wanted

    def _evaluation_is_due(self, rounds_played: int) -> bool:
        plan = self.job.plan
        every = self.job.record.evaluate_every * plan.rounds_of_one_step
        return rounds_played == plan.rounds_to_play or bool(every and rounds_played % every == 0)

    def _write_down(self, record: Record, clients: Record | None) -> bool:
        """Write the records of a round, and return whether the observer wants to end the run."""
        self.history.append(record)
        if clients is not None:
            self.history.client_lines.append(clients)
        if self.files:
            self.files.append(record)
        if self.files and clients is not None:
            self.files.append_clients(clients)
        return self.observe is not None and self.observe(record) == STOP

    def _save(self, server: ServerState, engine: Engine) -> None:
        if self.checkpoints and self.checkpoints.round != server.round:
            records = self.files.sync() if self.files else None
            self.checkpoints.write(server, engine.client_states(), records)
            self.saved_at = time.monotonic()

    def _end_diverged(self, before: ServerState, server: ServerState, reason: str) -> Run:
        """End with the last finite model, stored beside the checkpoint, which stays as it is.

        If the process is killed before the summary is written, the run goes on from the checkpoint
        and diverges again.
        """
        if self.files:
            path = self.files.path / store.LAST_FINITE
            self.files.check()
            checkpoint.save(path, before, {}, self.files.identity, records=self.files.sync())
        summary = self._summary("diverged", server)
        summary["reason"] = f"{reason} in round {self.history[-1]['round']}"
        summary["global_norm"] = self.history[-1]["global_norm"]
        return self._end(before, summary)

    def _summary(self, status: Status, server: ServerState) -> Record:
        metrics: Record = next((r["metrics"] for r in self.history[::-1] if "metrics" in r), {})
        clients = per_client.summarise(self.history.client_lines, self.history.client_names)
        return {
            "status": status,
            "rounds": server.round,
            **dataclasses.asdict(server.counts),
            "loss": self.history[-1]["loss"],
            "metrics": metrics,
            **({per_client.PER_CLIENT: clients} if clients else {}),
            **self.job.processes.summary(),
        }

    def _end(self, server: ServerState, summary: Record) -> Run:
        if self.files:
            self.files.finish(summary, self.job.task, server)
        return self._result(server, summary)

    def _result(self, server: ServerState, summary: Record, read_back: bool = False) -> Run:
        return Run(
            summary["status"],
            self.history,
            summary,
            server.x,
            server.buffers,
            self.job.folder,
            self.job.task.install(server.x, server.buffers),
            self.history.client_names,
            read_back,
        )

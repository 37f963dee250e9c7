"""The SNLI model on random sentences of SNLI's lengths: our rounds against bare gradients."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from episode.core.algorithm import ALGORITHMS
from episode.core.schedule import Schedule
from episode.data.batches import Batches
from episode.data.texts import TextBatch, Texts
from episode.engines.simulation import Simulation
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.models.birnn import PairClassifier
from episode.models.text import frozen_words
from episode.tasks.classification import batch_loss
from episode.tasks.neural import NeuralTask

WORDS, DIMENSION, HIDDEN, BATCH = 10_000, 300, 128, 16
CLIENTS, LOCAL_STEPS, WORKERS = 8, 4, 2
MEAN_LENGTHS = (12, 6)
loss = batch_loss("hinge")


def texts(seed: int, count: int = 640) -> Texts:
    """Pairs of sentences of 12 and 6 words on average."""
    generator = torch.Generator().manual_seed(seed)
    columns = []
    for mean in MEAN_LENGTHS:
        rate = torch.full((count,), mean - 2.0)
        lengths = torch.poisson(rate, generator=generator).long() + 2
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        tokens = torch.randint(WORDS, (int(offsets[-1]),), generator=generator, dtype=torch.int32)
        columns.append((tokens, offsets))
    return Texts(columns, torch.randint(3, (count,), generator=generator))


def model() -> PairClassifier:
    """Encoder 128, classifier 128, input of 300 numbers a word."""
    torch.manual_seed(0)
    return PairClassifier(frozen_words(torch.randn(WORDS, DIMENSION)), HIDDEN, HIDDEN)


class SnliRounds:
    """Rounds of one algorithm with two workers."""

    def __init__(self, algorithm: str) -> None:
        clients = [texts(seed) for seed in range(CLIENTS)]
        task = NeuralTask(model(), clients, loss, batch_size=BATCH)
        chosen = ALGORITHMS[algorithm]
        self.engine = Simulation(task, chosen, WORKERS)
        self.server = ServerState(*task.initial())
        plan = Plan(chosen, Schedule(1e-3, 1e-3), 10**9, LOCAL_STEPS)
        self.rounds = Rounds(plan, task, self.engine)

    def __call__(self) -> int:
        """One round; returns how many gradients it took."""
        before = self.server.counts.gradients
        self.rounds.play(self.server)
        return self.server.counts.gradients - before


def bare(count: int) -> Callable[[], int]:
    """So many gradients on prepared batches of all clients, by as many threads as workers."""
    batches = [
        Batches(texts(client), BATCH, 0, client).draw("local", k)
        for k in range(count // CLIENTS)
        for client in range(CLIENTS)
    ]
    models = [model() for _ in range(WORKERS)]
    shares = [batches[worker::WORKERS] for worker in range(WORKERS)]
    pool = ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,))

    def work(own: PairClassifier, share: list[TextBatch]) -> None:
        parameters = [p for p in own.parameters() if p.requires_grad]
        for batch in share:
            torch.autograd.grad(loss(own, batch), parameters)

    def run() -> int:
        list(pool.map(work, models, shares))
        return len(batches)

    return run

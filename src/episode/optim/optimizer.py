"""`FederatedSGD`: every algorithm of the grid as an optimizer for a training loop under torchrun.

Each process is one client. The loop stays as it is (`zero_grad`, `backward`, `step`). Every
`local_steps` steps the optimizer averages the model over the processes; in between it corrects and
clips as the algorithm says. Without a process group there is one client: this is clipped SGD, and a
warning says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from episode.arguments import number, positive, whole_number
from episode.core.adamw import AdamW, clip_
from episode.core.algorithm import Algorithm
from episode.core.server_step import ServerMean, ServerStep
from episode.core.vectors import Scalar, add_, copy_, descend_, dot, norm
from episode.errors import EpisodeError
from episode.federation.corrections import (
    first_memory_is_probed,
    mean_memory,
    new_memory,
    write_shift,
)
from episode.optim.held import Blocks, HoldingOptimizer
from episode.optim.peers import Peers
from episode.optim.settings import (
    algorithm_of,
    averaged_buffers,
    check_group,
    check_parameter,
    length_of_clipped_steps,
)


class FederatedSGD(HoldingOptimizer):
    """Local SGD with EPISODE's corrections and clipping, or those of any other algorithm.

    All processes start from the first one's parameters and must step equally often. Do not wrap the
    model in DistributedDataParallel, which averages gradients itself.

    Args:
        params: Parameters or parameter groups. A group may have its own `lr` and `weight_decay`.
        lr: The paper's step size η. When a scheduler changes it, γ follows.
        gamma: The paper's γ, the length of a clipped step. A round is clipped if the norm of the
            global gradient is above γ/η, for all parameter groups. An algorithm that does not clip
            needs none.
        local_steps: Number I of steps between two averages.
        algorithm: A name, such as "episode" or "scaffold", or an `Algorithm`.
        momentum: Momentum of each process, kept across rounds.
        weight_decay: Factor of the parameters that is added to each gradient or, with AdamW, taken
            from the parameters in each step; by default what the algorithm says, which is mostly 0.
        nesterov: Whether to use Nesterov's momentum.
        outer: What is done with the mean of the processes' models after each round: a `ServerStep`,
            or its name, such as "adam". By default what the algorithm says, which is mostly to take
            the mean.
        buffers: Buffers that are averaged with the model, such as `model.buffers()`, each in its
            own type; integer buffers are left alone.
        process_group: The processes that train together; by default all of them.

    Raises:
        EpisodeError: An argument is wrong.

    Example:
        >>> import torch
        >>> from episode.optim import FederatedSGD
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = FederatedSGD(model.parameters(), lr=0.1, gamma=0.1, local_steps=4)
        >>> for _ in range(8):
        ...     optimizer.zero_grad()
        ...     loss = model(torch.ones(5, 3)).pow(2).mean()
        ...     loss.backward()
        ...     optimizer.step()
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        gamma: float | None = None,
        local_steps: int | None = None,
        algorithm: str | Algorithm = "episode",
        momentum: float = 0.0,
        weight_decay: float | None = None,
        nesterov: bool = False,
        *,
        outer: ServerStep | str | Mapping[str, Any] | None = None,
        buffers: Iterable[Tensor] = (),
        process_group: Any = None,
    ) -> None:
        lr = positive("lr", lr)
        self.local_steps = whole_number("local_steps", local_steps, least=1)
        self.algorithm = algorithm_of(algorithm, momentum, nesterov, outer)
        gamma = length_of_clipped_steps(gamma, lr, self.algorithm)
        self._peers = Peers(process_group)
        self._peers.warn_if_alone()
        self._buffers = averaged_buffers(buffers)
        decay = self.algorithm.descent.weight_decay if weight_decay is None else weight_decay
        defaults = {
            "lr": lr,
            "weight_decay": number("weight_decay", decay),
            "threshold": gamma / lr,
            "steps_taken": 0,
            "global_norm": math.nan,
            "trust": 1.0,
            "deviation": 0.0,
        }
        super().__init__(params, defaults)
        if self._peers.size > 1:
            with torch.no_grad():
                held = [*self._x, *self._buffers]
                copy_(held, self._peers.of_first(held))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters between two rounds; raise an error for those that cannot be trained."""
        check_group({**self.defaults, **param_group})
        if self.param_groups and self.param_groups[0]["steps_taken"] % self.local_steps:
            raise EpisodeError("Parameters can be added between two rounds only.")
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        added["steps_taken"] = self.param_groups[0]["steps_taken"]
        first = self.param_groups[0]["params"][0]
        for p in added["params"]:
            check_parameter(p, first, self._name(p))

    @torch.no_grad()
    def step(
        self, closure: Callable[[], Any] | None = None, *, probe: Callable[[], Any] | None = None
    ) -> Any:
        """Take one local step; begin a round before its first step, and end it after its last.

        Args:
            closure: Clears the gradients, computes the loss, calls `backward` and returns the loss,
                as for any optimizer.
            probe: Does the same on a batch of its own. It is called only at the beginning of a
                round, and gives G_r^i (Algorithm 1, line 3); by default the step's own batch does.

        Returns:
            What `closure` returned, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradient, correction = self._gradient(), self.algorithm.correction
        if not correction.steps_locally:
            self._step_together(gradient)
            self._set("steps_taken", self._taken + 1)
            return loss
        if begins := self._taken % self.local_steps == 0:
            self._begin_round(gradient, probe)
        if correction.remembers:
            add_(self._held("gradient_sum"), gradient)
        shift = self._held("shift") if correction.has_global else None
        if self.algorithm.trust.measures:
            assert shift is not None
            is_probe = begins and correction.probes and probe is None  # then g = G_r exactly
            self._set("trust", 1.0 if is_probe else self._measured_trust(gradient, shift))
        if self.algorithm.descent.proximal:
            self.algorithm.descent.pull_(gradient, self._x, self._held("start"))
        self._descend(gradient, shift)
        self._set("steps_taken", self._taken + 1)
        if self._taken % self.local_steps == 0:
            self._end_round()
        return loss

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the model the mean over all processes, for an evaluation in the middle of a round.

        Every process must enter it. Between two rounds the model already is that mean.
        """
        together = not self.algorithm.correction.steps_locally
        if self._peers.size == 1 or together or self._taken % self.local_steps == 0:
            yield
            return
        held = [*self._x, *self._buffers]
        own = [t.clone() for t in held]
        with torch.no_grad():
            copy_(held, self._peers.mean(own))
        try:
            yield
        finally:
            with torch.no_grad():
                copy_(held, own)

    def _begin_round(self, gradient: Blocks, probe: Callable[[], Any] | None) -> None:
        correction = self.algorithm.correction
        if self.algorithm.server != ServerMean() or self.algorithm.descent.proximal:
            self._hold("start", [x.clone() for x in self._x])
        if not correction.has_global:
            return
        if correction.probes:
            local = gradient if probe is None else self._fresh(probe)
            G = self._peers.mean(local)
        else:
            if self._taken == 0:
                self._first_memory(gradient, probe)
            G, local = self._held("mean_memory"), self._held("memory")
            self._hold("gradient_sum", [torch.zeros_like(g) for g in gradient])
        shift = [torch.empty_like(g) for g in gradient]
        write_shift(shift, G, local)
        self._hold("shift", shift)
        self._set("global_norm", norm(G))
        if self.algorithm.trust.measures:
            self._set("deviation", dot(shift, shift))

    def _measured_trust(self, gradient: Blocks, shift: Blocks) -> Scalar:
        """Return λ, how much of the correction is believed in this step."""
        algorithm, first = self.algorithm, self.param_groups[0]
        threshold, deviation = algorithm.threshold(1.0, first["threshold"]), first["deviation"]
        ageing = algorithm.trust.ageing(first["global_norm"], threshold, deviation)
        age = self._taken % self.local_steps * ageing
        return algorithm.trust.of_step(gradient, shift, deviation, age)

    def _first_memory(self, gradient: Blocks, probe: Callable[[], Any] | None) -> None:
        memory = [torch.zeros_like(g) for g in gradient]
        mean = memory
        if first_memory_is_probed(self.algorithm):
            memory = [g.clone() for g in gradient] if probe is None else self._fresh(probe)
            mean = self._peers.mean(memory)
        self._hold("memory", memory)
        self._hold("mean_memory", [m.clone() for m in mean])

    def _end_round(self) -> None:
        """Average the model, the buffers and the changes of memories, in one collective."""
        parts = [*self._x, *self._buffers]
        change: Blocks = []
        if self.algorithm.correction.remembers:
            sums, old = self._held("gradient_sum"), self._held("memory")
            memory, change = new_memory(sums, self.local_steps, old)
            self._hold("memory", memory)
        means = self._peers.mean([*parts, *change])
        copy_(parts, means[: len(parts)])
        if change:
            mean = mean_memory(self._held("mean_memory"), means[len(parts) :])
            self._hold("mean_memory", mean)
        if self.algorithm.server != ServerMean():
            for p in self._parameters:
                held = self.state[p]
                outer = held.setdefault("outer", {})
                if p.requires_grad:
                    p.copy_(self.algorithm.server.step(held["start"], p.detach(), outer))

    def _step_together(self, gradient: Blocks) -> None:
        """Take one step of all processes along the mean gradient."""
        means = self._peers.mean([*gradient, *self._buffers])
        copy_(self._buffers, means[len(gradient) :])
        G = means[: len(gradient)]
        self._set("global_norm", norm(G))
        self._descend([g.clone() for g in G], None)

    def _descend(self, gradient: Blocks, shift: Blocks | None) -> None:
        """Apply lines 9 and 10 of Algorithm 1, with each group's step in proportion to its lr."""
        algorithm, first = self.algorithm, self.param_groups[0]
        velocity = None
        if algorithm.descent.has_velocity:
            if "velocity" not in self.state[self._parameters[0]]:
                self._hold("velocity", [torch.zeros_like(g) for g in gradient])
            velocity = self._held("velocity")
        g = algorithm.descent.direction(gradient, shift, velocity, first["trust"])
        G_norm, threshold = first["global_norm"], first["threshold"]
        needed = algorithm.clipping.asks_for_norm(G_norm, 1.0, threshold)
        g_norm: Scalar = norm(g) if needed else math.nan
        factor = algorithm.clipping.step_size(g_norm, G_norm, 1.0, threshold)
        if isinstance(algorithm.descent, AdamW):
            clip_(g, factor, 1.0)
            if not self._taken or (
                self._taken % self.local_steps == 0 and not algorithm.descent.kept
            ):
                self._reset_moments()
        by_parameter = dict(zip(self._parameters, g, strict=True))
        for group in self.param_groups:
            moving = [p for p in group["params"] if p in by_parameter and p.requires_grad]
            if moving:
                x, along = [p.detach() for p in moving], [by_parameter[p] for p in moving]
                if isinstance(algorithm.descent, AdamW):
                    lr, decay = float(group["lr"]), float(group["weight_decay"])
                    algorithm.descent.adam_(x, along, self._moments(moving), lr, decay)
                else:
                    descend_(x, float(group["lr"]) * factor, along)

    def _gradient(self) -> Blocks:
        """Return a copy of each parameter's gradient, with weight decay; zero if it has none."""
        blocks: Blocks = []
        for group in self.param_groups:
            for p in group["params"]:
                if not self._trains(p):
                    continue
                if p.grad is not None and p.grad.is_sparse:
                    raise EpisodeError(
                        f"The gradient of {self._name(p)} is sparse, which is not supported: "
                        "use sparse=False in its layer."
                    )
                block = torch.zeros_like(p) if p.grad is None else p.grad.clone()
                if group["weight_decay"] and p.requires_grad and not self.algorithm.descent.adapts:
                    block.add_(p, alpha=group["weight_decay"])
                blocks.append(block)
        return blocks

    def _fresh(self, probe: Callable[[], Any]) -> Blocks:
        """Return the gradient that `probe` computes, and restore the loop's own gradients."""
        own = [p.grad for p in self._parameters]
        for p in self._parameters:
            p.grad = None
        with torch.enable_grad():
            probe()
        gradient = self._gradient()
        for p, grad in zip(self._parameters, own, strict=True):
            p.grad = grad
        return gradient

"""What an optimizer holds for each parameter, so that its `state_dict` has all of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from episode.core.adamw import Moments

Blocks = list[Tensor]


class HoldingOptimizer(torch.optim.Optimizer):
    """An optimizer whose vectors are lists of blocks, one for each trained parameter."""

    @property
    def _parameters(self) -> Blocks:
        return [p for group in self.param_groups for p in group["params"] if self._trains(p)]

    @property
    def _x(self) -> Blocks:
        return [p.detach() for p in self._parameters]

    def _trains(self, p: Tensor) -> bool:
        """Whether the parameter is trained: it was not frozen when it was added."""
        return bool(self.state[p].setdefault("trains", p.requires_grad))

    @property
    def _taken(self) -> int:
        return int(self.param_groups[0]["steps_taken"])

    def _set(self, name: str, value: Any) -> None:
        for group in self.param_groups:
            group[name] = value

    def _hold(self, name: str, blocks: Iterable[Tensor]) -> None:
        for p, block in zip(self._parameters, blocks, strict=True):
            self.state[p][name] = block

    def _held(self, name: str) -> Blocks:
        return [self.state[p][name] for p in self._parameters]

    def _reset_moments(self) -> None:
        """Start the moments of AdamW from zero."""
        for p in self._parameters:
            zeros = {"velocity": torch.zeros_like(p), "second": torch.zeros_like(p)}
            self.state[p].update(zeros, step=torch.zeros((), device=p.device))

    def _moments(self, parameters: Blocks) -> Moments:
        names = ("velocity", "second", "step")
        return Moments(*([self.state[p][name] for p in parameters] for name in names))

    def _name(self, parameter: Tensor) -> str:
        """Return the parameter's name or, if it has none, its place."""
        for g, group in enumerate(self.param_groups):
            for k, p in enumerate(group["params"]):
                if p is parameter:
                    place = f"Parameter {k} of group {g}, {list(p.shape)},"
                    return str(group["param_names"][k]) if "param_names" in group else place
        raise AssertionError

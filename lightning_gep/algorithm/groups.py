"""Parameter groups: trainable parameters as one flat vector, group after group, and each group's share of the basis."""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from lightning_gep.arguments import one_of, positive_integer
from lightning_gep.errors import ConfigurationError

Grouping = str | int | Mapping[str, str | Sequence[str]]
Assignment = dict[str, list[str]]
"""Group name → names of its parameters."""

FEWEST_TREE_GROUPS, BALANCED_GROUPS = 3, 5


@dataclass(frozen=True)
class ParameterGroups:
    """The layout of the flat vector: group after group, parameter after parameter.

    Every trainable parameter is in exactly one group; frozen ones are in none; tied ones appear once, under their
    first name.
    """

    names: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    shapes: Mapping[str, torch.Size]

    @classmethod
    def from_module(cls, module: nn.Module, grouping: Grouping = "balanced") -> "ParameterGroups":
        """The groups of a module's trainable parameters.

        - "balanced": five groups of about equal size, in order of definition, fewer where a layer is larger than a
          fifth. A basis has a number for each parameter of a group and each vector of the group's share, so one large
          group costs more than its parts, and small layers profit from sharing the vectors of a large group;
        - a whole number: that many groups of about equal size (the authors' code uses 3);
        - "tree" follows the module tree: for a ResNet its input layer, each stage, its output layer, as in the paper;
        - "layer": one group per module that owns parameters;
        - "all": one group;
        - a mapping of group name → name pattern or patterns (`*` stands for anything); the first match counts.
        """
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not parameters:
            raise ConfigurationError("The module has no trainable parameters. Unfreeze some before training.")
        assignment = _assign(parameters, grouping)
        return cls(
            names=tuple(assignment),
            members=tuple(tuple(names) for names in assignment.values()),
            shapes={name: parameters[name].shape for names in assignment.values() for name in names},
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of parameters of each group (pᵢ)."""
        return tuple(sum(self.shapes[name].numel() for name in names) for names in self.members)

    @property
    def num_parameters(self) -> int:
        """Number of all trainable parameters (p)."""
        return sum(self.sizes)

    def flatten(self, tensors: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
        """One tensor of shape (*batch, p) from tensors of shape (*batch, *parameter shape), at least in float32.

        It is put into `out` if that is given.
        """
        columns = []
        for name, shape in self.shapes.items():
            tensor = tensors[name]
            columns.append(tensor.reshape(*tensor.shape[: tensor.dim() - len(shape)], shape.numel()))
        flat = torch.cat(columns, dim=-1, out=out)
        return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """The inverse of `flatten` for one vector; the results are views of it."""
        pieces = flat.split([shape.numel() for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def quotas(self, k: int) -> tuple[int, ...]:
        """Basis vectors of each group (kᵢ): ∝ √pᵢ as in the paper, summing to k exactly, never above pᵢ."""
        return allocate(k, self.sizes)


def allocate(k: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Whole numbers ∝ √size that sum to k, none above its size; groups that are full pass their excess on."""
    positive_integer("k", k, "It is the number of basis vectors, e.g. 1000; for none at all use mechanism='gp'.")
    if k > sum(sizes):
        raise ConfigurationError(
            f"k={k} basis vectors are more than the {sum(sizes)} trainable parameters. "
            f"Use k={sum(sizes)} at most, or mechanism='gp'.",
            setting="k",
        )
    shares = _capped_shares(k, sizes)
    quotas = [math.floor(share + 1e-9) for share in shares]
    by_remainder = sorted(range(len(sizes)), key=lambda i: quotas[i] - shares[i])
    open_groups = [i for i in by_remainder if quotas[i] < sizes[i]]
    for i in open_groups[: k - sum(quotas)]:
        quotas[i] += 1
    return tuple(quotas)


def _capped_shares(k: int, sizes: Sequence[int]) -> list[float]:
    """Real numbers ∝ √size with sum k, after fixing the groups whose share would exceed their size."""
    full: set[int] = set()
    while True:
        left = k - sum(sizes[i] for i in full)
        total = sum(math.sqrt(size) for i, size in enumerate(sizes) if i not in full)
        shares = [size if i in full else left * math.sqrt(size) / total for i, size in enumerate(sizes)]
        overfull = {i for i, share in enumerate(shares) if share > sizes[i]}
        if not overfull:
            return shares
        full |= overfull


def _assign(parameters: Mapping[str, Tensor], grouping: Grouping) -> Assignment:
    if isinstance(grouping, Mapping):
        return _by_pattern(parameters, grouping)
    if isinstance(grouping, int):
        return _evenly(parameters, grouping)
    one_of("groups", grouping, ("balanced", "tree", "layer", "all"))
    if grouping == "all":
        return {"all": list(parameters)}
    if grouping == "layer":
        return _by_owner(parameters)
    if grouping == "balanced":
        return _named(_join_vectors(_evenly(parameters, BALANCED_GROUPS), parameters))
    return _by_tree(parameters)


def _by_owner(parameters: Mapping[str, Tensor]) -> Assignment:
    groups: Assignment = {}
    for name in parameters:
        groups.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return groups


def _evenly(parameters: Mapping[str, Tensor], count: int) -> Assignment:
    """Cut the list of parameters where its running size passes the next equal share; a parameter is never cut."""
    positive_integer("groups", count, "It is the number of groups of equal size, e.g. 3.")
    total = sum(p.numel() for p in parameters.values())
    groups: Assignment = {}
    ends = accumulate(p.numel() for p in parameters.values())
    for (name, p), end in zip(parameters.items(), ends, strict=True):
        middle = end - p.numel() / 2
        groups.setdefault(f"part{int(middle * count / total)}", []).append(name)
    return groups


def _named(groups: Assignment) -> Assignment:
    """The groups by the module they begin with; by the parameter where two begin in the same module."""
    named: Assignment = {}
    for first, *rest in groups.values():
        owner = first.rpartition(".")[0] or first
        named[first if owner in named else owner] = [first, *rest]
    return named


def _by_pattern(parameters: Mapping[str, Tensor], patterns: Mapping[str, str | Sequence[str]]) -> Assignment:
    groups: Assignment = {group: [] for group in patterns}
    for name in parameters:
        for group, wanted in patterns.items():
            if any(fnmatch.fnmatchcase(name, p) for p in ([wanted] if isinstance(wanted, str) else wanted)):
                groups[group].append(name)
                break
        else:
            raise ConfigurationError(
                f"groups has no pattern for the parameter {name!r}. Add one, e.g. {{'rest': '*'}} at the end."
            )
    for group, names in groups.items():
        if not names:
            raise ConfigurationError(
                f"groups[{group!r}]={patterns[group]!r} matches no trainable parameter that an earlier pattern left. "
                f"The parameters are {', '.join(list(parameters)[:8])}{', …' if len(parameters) > 8 else ''}."
            )
    return groups


def _by_tree(parameters: Mapping[str, Tensor]) -> Assignment:
    """Children of the root, opened further while there are fewer than three; norm layers go with what they follow."""
    groups = _children("", list(parameters))
    while len(groups) < FEWEST_TREE_GROUPS:
        opened = {name: _children(name, members) for name, members in groups.items()}
        splittable = [name for name, parts in opened.items() if len(parts) > 1 or list(parts) != [name]]
        if not splittable:
            break
        largest = max(splittable, key=lambda name: sum(parameters[m].numel() for m in groups[name]))
        parts = [opened[name] if name == largest else {name: members} for name, members in groups.items()]
        groups = {name: members for part in parts for name, members in part.items()}
    return _join_vectors(groups, parameters)


def _children(prefix: str, members: Sequence[str]) -> Assignment:
    """The members of one node of the tree by its child; a parameter the node itself owns is a child of its own."""
    start = len(prefix) + 1 if prefix else 0
    groups: Assignment = {}
    for name in members:
        child = name if name == prefix else name[:start] + name[start:].partition(".")[0]
        groups.setdefault(child, []).append(name)
    return groups


def _join_vectors(groups: Assignment, parameters: Mapping[str, Tensor]) -> Assignment:
    """Groups of vectors only (norm layers, scales, biases) join the group before them, or the first one after."""
    joined: Assignment = {}
    waiting: list[str] = []
    for name, members in groups.items():
        if all(parameters[member].dim() <= 1 for member in members) and len(groups) > 1:
            (joined[next(reversed(joined))] if joined else waiting).extend(members)
        else:
            joined[name] = waiting + members
            waiting = []
    return joined or {"all": waiting}

"""Small LightningModules, each with one thing in it that per-sample gradients can stumble over, and their batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torchmetrics.classification import MulticlassAccuracy

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients import Backend, choose_backend

N, FEATURES, CLASSES, WORDS, LENGTH = 6, 5, 3, 11, 4


def mlp(activation: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 7), activation or nn.Tanh(), nn.Linear(7, CLASSES))


class Classifier(LightningModule):
    """Cross-entropy of `network` on a batch (x, y)."""

    def __init__(self, network: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network or mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)


class Apply(nn.Module):
    """A function of a module's output as a module, to be put in a Sequential."""

    def __init__(self, function: Callable[..., Tensor], module: nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        self.module = module or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.module(x))


class Steps(Classifier):
    """A training step that is given as a function of the module and the batch; `setup` may add something to it."""

    def __init__(
        self, step: Callable[[Any, Any], Tensor], setup: Callable[[Any], object] = lambda module: None
    ) -> None:
        super().__init__()
        self.step = step
        setup(self)

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        return self.step(self, batch)


def cross_entropy(module: Any, batch: Any) -> Tensor:
    return F.cross_entropy(module(batch[0]), batch[1])


def calls_item(module: Any, batch: Any) -> Tensor:
    loss = cross_entropy(module, batch)
    module.last_loss = loss.item()
    return loss


def logs_metric(module: Any, batch: Any) -> Tensor:
    logits = module(batch[0])
    module.accuracy(logits, batch[1])
    return F.cross_entropy(logits, batch[1])


def collects_outputs(module: Any, batch: Any) -> Tensor:
    loss = cross_entropy(module, batch)
    module.outputs.append(loss.detach())
    return loss


def past_the_module_tree(module: Any) -> None:
    """The loss reaches a weight through a plain function."""
    weight = module.network[0].weight
    module.penalty = lambda: weight.square().sum()


def recurrent(layer: nn.Module) -> Apply:
    return Apply(lambda output: output[0], layer)


def time_first() -> nn.Sequential:
    """A layer that sees (time, batch, features), here with as many times as records."""
    return nn.Sequential(Apply(lambda x: x.transpose(0, 1)), nn.Linear(8, 8), Apply(lambda x: x.tanh().transpose(0, 1)))


def layer_with_two_names() -> Classifier:
    """As where a backbone is an attribute, and in a Sequential with its head."""
    layer = nn.Linear(FEATURES, FEATURES)
    module = Classifier(nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(FEATURES, CLASSES)))
    module.backbone = layer
    return module


def branches(module: Any, batch: Any) -> Tensor:
    rows = [row * 2 if row.sum() > 0 else row for row in module(batch[0])]
    return F.cross_entropy(torch.stack(rows), batch[1])


def reads_strings(module: Any, batch: Any) -> Tensor:
    lengths = torch.tensor([len(text) for text in batch["text"]], dtype=batch["x"].dtype)
    return (module(batch["x"]).square().sum(dim=1) * lengths).mean()


def own_parameter(module: Any) -> None:
    module.temperature = nn.Parameter(torch.tensor(1.5))


def penalised(module: Any, batch: Any) -> Tensor:
    return cross_entropy(module, batch) + 0.01 * sum(p.square().sum() for p in module.parameters())


def weights_without_their_layer(module: Any, batch: Any) -> Tensor:
    first, tanh, last = module.network
    return F.cross_entropy(last(tanh(F.linear(batch[0], first.weight.tanh(), first.bias))), batch[1])


def stochastic_depth(module: Any, batch: Any) -> Tensor:
    x, y = batch
    kept = torch.empty(len(x), 1).bernoulli_(0.5) if module.training else torch.ones(len(x), 1)
    return F.cross_entropy(kept.div_(0.5) * module(x), y)


def filled_in_place(module: Any, batch: Any) -> Tensor:
    x, y = batch
    kept = torch.empty(len(x), 1)
    kept.bernoulli_(0.5 if module.training else 1.0)
    return F.cross_entropy((1 + kept) * module(x), y)  # never zero: a replay has to see every record


class Inputs(NamedTuple):
    left: Tensor
    right: Tensor


class SeveralInputs(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = mlp(), mlp()

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        inputs, y, scale = batch
        return F.cross_entropy(scale * self.left(inputs.left) * self.right(inputs.right), y)


class FrozenBatchNorm(Classifier):
    def __init__(self) -> None:
        norm = nn.BatchNorm1d(7)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        super().__init__(nn.Sequential(nn.Linear(FEATURES, 7), norm, nn.Tanh(), nn.Linear(7, CLASSES)))
        norm.eval()


class LanguageModel(LightningModule):
    """Predicts each word from `body` of the words; the loss is the mean over words, then over records."""

    def __init__(self, body: nn.Module, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.body = body
        self.output = nn.Linear(8, WORDS)
        if tied:
            self.output.weight = self.embedding.weight

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        logits = self.output(self.body(self.embedding(batch)))
        return F.cross_entropy(logits.transpose(1, 2), batch, reduction="none").mean(dim=1).mean()


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Autoencoder(LightningModule):
    """A variational autoencoder; in evaluation mode it does not sample."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(FEATURES, 4), nn.Linear(2, FEATURES)

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        x, _ = batch
        mean, log_std = self.encoder(x).chunk(2, dim=1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        error = (self.decoder(mean + noise * log_std.exp()) - x).square().sum(dim=1)
        return (error + 0.5 * (mean.square() + (2 * log_std).exp() - 2 * log_std).sum(dim=1)).mean()


class Convolutional(Classifier):
    def __init__(self) -> None:
        super().__init__(
            nn.Sequential(
                nn.Conv2d(2, 4, 3, padding=1),
                nn.GroupNorm(2, 4),
                nn.ReLU(),
                nn.Conv2d(4, 4, 3, stride=2, bias=False),
                nn.GroupNorm(2, 4),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(16, CLASSES),
            )
        )


class MixedPrecision(Classifier):
    """What precision="bf16-mixed" does: autocast around the training step."""

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().training_step(batch, batch_index)


def labelled(*shape: int) -> Callable[[], Any]:
    return lambda: (torch.randn(N, *shape), torch.randint(CLASSES, (N,)))


def text(length: int = LENGTH) -> Callable[[], Tensor]:
    return lambda: torch.randint(WORDS, (N, length))


def dict_batch() -> Any:
    x, y = labelled(FEATURES)()
    return {"x": x, "label": {"y": y}}


def several_inputs() -> Any:
    x, y = labelled(FEATURES)()
    return Inputs(x, torch.randn(N, FEATURES)), y, 0.7


def strings() -> Any:
    return {"x": torch.randn(N, FEATURES), "text": ["a" * (i + 1) for i in range(N)]}


@dataclass(frozen=True)
class Case:
    """A module of the zoo, how to make a batch for it, and how closely its gradients can be compared."""

    module: Callable[[], LightningModule]
    batch: Callable[[], Any] = field(default=labelled(FEATURES))
    random: bool = False
    """In training mode; it is not in evaluation mode."""
    half: bool = False

    def build(self, dtype: torch.dtype = torch.float32) -> tuple[LightningModule, Any]:
        """The module and a batch, the same at every call."""
        with default_dtype(dtype), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.module(), self.batch()


ZOO: dict[str, Case] = {
    "Linear": Case(Classifier),
    "Conv2d, GroupNorm": Case(Convolutional, labelled(2, 5, 5)),
    "LayerNorm": Case(lambda: Classifier(nn.Sequential(nn.LayerNorm(FEATURES), mlp()))),
    "PReLU": Case(lambda: Classifier(mlp(nn.PReLU()))),
    "Embedding": Case(lambda: LanguageModel(nn.Tanh()), text()),
    "nn.LSTM": Case(lambda: LanguageModel(recurrent(nn.LSTM(8, 8, batch_first=True))), text()),
    "nn.LSTM with dropout": Case(
        lambda: LanguageModel(recurrent(nn.LSTM(8, 8, 2, dropout=0.3, batch_first=True))), text(), random=True
    ),
    "nn.GRU": Case(lambda: LanguageModel(recurrent(nn.GRU(8, 8, batch_first=True))), text()),
    "nn.MultiheadAttention": Case(lambda: LanguageModel(SelfAttention()), text()),
    "nn.TransformerEncoder": Case(
        lambda: LanguageModel(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)),
        text(),
        random=True,
    ),
    "layers that see time first": Case(lambda: LanguageModel(time_first()), text(N)),
    "Dropout": Case(lambda: Classifier(nn.Sequential(nn.Dropout(0.2), mlp(), nn.Dropout(0.2))), random=True),
    "F.dropout": Case(
        lambda: Steps(lambda m, b: cross_entropy(m, (F.dropout(b[0], 0.3, m.training), b[1]))), random=True
    ),
    "randn in the loss (VAE)": Case(Autoencoder, random=True),
    "stochastic depth, `torch.empty(…).bernoulli_(p)`": Case(lambda: Steps(stochastic_depth), random=True),
    "`mask.bernoulli_(p)`, read as `mask`": Case(lambda: Steps(filled_in_place), random=True),
    "in-place ReLU": Case(lambda: Classifier(mlp(nn.ReLU(inplace=True)))),
    "F.relu_": Case(lambda: Classifier(mlp(Apply(F.relu_)))),
    "frozen BatchNorm": Case(FrozenBatchNorm),
    "weight_norm": Case(lambda: Classifier(parametrizations.weight_norm(nn.Linear(FEATURES, CLASSES)))),
    "tied weights": Case(lambda: LanguageModel(nn.Tanh(), tied=True), text()),
    "a layer with two names": Case(layer_with_two_names),
    "frozen parameters": Case(lambda: Steps(cross_entropy, lambda m: m.network[0].requires_grad_(False))),
    "unused parameters": Case(lambda: Steps(cross_entropy, lambda m: m.add_module("spare", nn.Linear(2, 2)))),
    "parameters on the LightningModule": Case(
        lambda: Steps(lambda m, b: F.cross_entropy(m(b[0]) * m.temperature, b[1]), own_parameter)
    ),
    "weights used without their layer": Case(lambda: Steps(weights_without_their_layer)),
    "L2 term in the loss": Case(lambda: Steps(penalised)),
    "weights reached past the module tree": Case(
        lambda: Steps(lambda m, b: cross_entropy(m, b) + 0.01 * m.penalty(), past_the_module_tree)
    ),
    "torchmetrics in training_step": Case(
        lambda: Steps(logs_metric, lambda m: m.add_module("accuracy", MulticlassAccuracy(CLASSES)))
    ),
    ".item() in training_step": Case(lambda: Steps(calls_item)),
    "outputs collected in a list": Case(lambda: Steps(collects_outputs, lambda m: setattr(m, "outputs", []))),
    "branches on values": Case(lambda: Steps(branches)),
    "dict batch": Case(lambda: Steps(lambda m, b: cross_entropy(m, (b["x"], b["label"]["y"]))), dict_batch),
    "tuple batch, several inputs": Case(SeveralInputs, several_inputs),
    "strings in the batch": Case(lambda: Steps(reads_strings), strings),
    "bf16-mixed": Case(MixedPrecision, half=True),
    "bf16-mixed, Conv2d, GroupNorm": Case(
        type("MixedConvolutional", (MixedPrecision, Convolutional), {}), labelled(2, 5, 5), half=True
    ),
    "gradient checkpointing": Case(
        lambda: Steps(lambda m, b: F.cross_entropy(checkpoint(m.network, b[0], use_reentrant=False), b[1]))
    ),
}


def loss_of(module: LightningModule) -> Callable[[Any], Tensor]:
    return lambda batch: module.training_step(batch, 0)


def batch_of(n: int = N) -> tuple[Tensor, Tensor]:
    return torch.randn(n, FEATURES), torch.arange(n) % CLASSES


def choose(module: LightningModule, how: str = "auto", batch: Any = None) -> Backend:
    groups = ParameterGroups.from_module(module)
    return choose_backend(module, loss_of(module), groups, batch_of() if batch is None else batch, how)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

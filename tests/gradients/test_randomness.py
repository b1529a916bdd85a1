from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lightning_gep.gradients.randomness import quiet, random_state_kept, seeded

X = torch.linspace(-1.0, 1.0, 4 * 6).reshape(4, 6)


def attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[0]


def layer(module: nn.Module) -> Callable[[Tensor], Tensor]:
    def output(x: Tensor) -> Tensor:
        result = module(x[None], x[None], x[None]) if isinstance(module, nn.MultiheadAttention) else module(x[None])
        return (result[0] if isinstance(result, tuple) else result)[0]

    return output


RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "F.dropout": lambda x: F.dropout(x, 0.5),
    "nn.Dropout": nn.Dropout(0.5),
    "nn.Dropout2d": lambda x: nn.Dropout2d(0.5)(x[None, :, :, None])[0, :, :, 0],
    "nn.AlphaDropout": nn.AlphaDropout(0.5),
    "attention": attention,
    "nn.MultiheadAttention": layer(nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)),
    "nn.TransformerEncoderLayer": layer(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.5, batch_first=True)),
    "nn.LSTM": layer(nn.LSTM(6, 6, 2, dropout=0.5, batch_first=True)),
    "nn.GRU": layer(nn.GRU(6, 6, 2, dropout=0.5, batch_first=True)),
    "randn_like": lambda x: x + torch.randn_like(x),
    "randn": lambda x: x + torch.randn(len(x), 1),
    "rand": lambda x: x * (torch.rand(x.shape) < 0.6),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(0.5),
    "normal": lambda x: x + torch.normal(0.0, 1.0, x.shape),
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "randint": lambda x: x * torch.randint(1, 9, (len(x), 1)),
    "multinomial": lambda x: x[:, torch.multinomial(torch.ones(6), 1)],
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, tau=0.5),
    "Normal.rsample": lambda x: torch.distributions.Normal(x, 1.0).rsample(),
    "Categorical.sample": lambda x: x * torch.distributions.Categorical(logits=x).sample()[:, None],
}


@pytest.mark.parametrize("name", RANDOM)
def test_quiet_takes_the_randomness_out(name: str) -> None:
    loss = RANDOM[name]
    assert not torch.equal(loss(X), loss(X)), "it is random to begin with"
    assert torch.equal(quiet(loss)(X), quiet(loss)(X))
    assert quiet(loss)(X).shape == loss(X).shape


@pytest.mark.parametrize("name", ["F.dropout", "attention", "randn_like", "gumbel_softmax", "randint"])
def test_quiet_treats_every_record_alike(name: str) -> None:
    batch = torch.stack([X, X.flip(0)])
    apart = torch.stack([quiet(RANDOM[name])(x) for x in batch])
    assert torch.allclose(torch.func.vmap(quiet(RANDOM[name]), randomness="different")(batch), apart)


def test_the_lower_bound_of_random_integers_is_kept() -> None:
    draws = [
        lambda _: torch.randint(3, 9, (2,)),
        lambda _: torch.randint(low=3, high=9, size=(2,)),
    ]
    for draw in draws:
        assert quiet(draw)(X).tolist() == [3, 3]
    assert quiet(lambda _: torch.randint(9, (2,)))(X).tolist() == [0, 0]


def test_seeded_repeats_itself() -> None:
    loss = seeded(torch.randn_like, 3)
    assert torch.equal(loss(X), loss(X))
    assert not torch.equal(loss(X), seeded(torch.randn_like, 4)(X))


def test_seeding_leaves_nothing_behind_for_devices_that_are_not_in_use() -> None:
    queued = len(torch.cuda._queued_calls)
    seeded(torch.randn_like, 3)(X)
    assert len(torch.cuda._queued_calls) == queued


def test_the_random_state_is_put_back_after_an_error() -> None:
    module = nn.Linear(1, 1)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError), random_state_kept():
        seeded(lambda x: module(x), 3)(X)
    assert torch.equal(torch.get_rng_state(), state)

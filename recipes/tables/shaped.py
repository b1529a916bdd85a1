"""Tables of shaped noise: GP, GEP and spectral with one network, each tuned with the same number of trials."""

from itertools import product

from recipes.tables.types import Cell, Run, Table

LINES = {
    "gp": "GP",
    "gep": "GEP, k = 400",
    "spectral": "spectral",
    "preconditioned": "spectral, preconditioned",
}
RATES = (1.0, 2.0, 4.0, 8.0)
CHOSEN: dict[str, float] = {"gp": 4.0, "preconditioned": 2.0}
"""The learning rate with the best validation accuracy among `RATES`, for mechanisms whose trials are complete."""

OPTIONS = (
    ("ema", "weights averaged", "callbacks=ema"),
    ("copies", "four random copies of an image", "+model.copies=4"),
    ("synthetic", "pink noise for public images", "aux=synthetic", "aux.count=5000"),
)
"""Options tried alone; the first two cost no privacy, the last needs no public images."""

CIFAR10_TRIALS = Table(
    name="cifar10_trials",
    title="CIFAR-10 with a small network: how learning rates were chosen",
    published="nothing",
    about=(
        "Four learning rates for each mechanism, judged on 5000 training images that were held out; no test image had "
        "a say. S = 1 for GP and spectral; GEP's thresholds are chosen on public data."
    ),
    headline="spectral, preconditioned, learning rate 2",
    judged_by="validation_accuracy",
    follows="validation_accuracy",
    cells=tuple(
        Cell(
            f"{name}_lr{rate:g}".replace(".", "_"),
            "CIFAR-10, small network, ε = 2",
            f"{line}, learning rate {rate:g}",
            f"cifar10_cnn/{name}",
            overrides=("data.validation_size=5000", f"optimizer.lr={rate}"),
        )
        for (name, line), rate in product(LINES.items(), RATES)
    ),
)

NOT_PRIVATE = Cell("no_privacy", "CIFAR-10, small network", "no privacy", "no_privacy/cifar10_cnn")

CIFAR10_CNN = Table(
    name="cifar10_cnn",
    title="Shaped noise: CIFAR-10 with a small network",
    published="nothing",
    about=(
        "A network of 61 162 parameters, batches of 1000, ten epochs, at a learning rate of each mechanism's own, the "
        "best of four at ε = 2 on validation images (the next table). Noise is calibrated by PLD."
    ),
    headline=LINES["preconditioned"],
    cells=(
        NOT_PRIVATE,
        *(
            Cell(
                f"{name}_eps{epsilon:g}",
                f"CIFAR-10, small network, ε = {epsilon:g}",
                line,
                f"cifar10_cnn/{name}",
                overrides=(f"optimizer.lr={CHOSEN[name]}", f"privacy.epsilon={epsilon}"),
                seeds=(0, 1, 2),
            )
            for epsilon, (name, line) in product((2.0, 8.0), LINES.items())
            if name in CHOSEN
        ),
        *(
            Cell(
                f"{name}_{option}_eps2",
                "CIFAR-10, small network, ε = 2",
                f"{LINES[name]}, {words}",
                f"cifar10_cnn/{name}",
                overrides=(f"optimizer.lr={CHOSEN[name]}", *override),
            )
            for name, (option, words, *override) in product(("gp", "preconditioned"), OPTIONS)
            if name in CHOSEN and (name, option) != ("gp", "synthetic")
        ),
    ),
)


def first_runs() -> list[Run]:
    """The runs at ε = 2 and the trials they rest on; one seed of each mechanism before the next."""
    finals = [run for seed in (0, 1, 2) for run in CIFAR10_CNN.runs(["*_eps2"], seeds=[seed])]
    return [*CIFAR10_TRIALS.runs(), *CIFAR10_CNN.runs(["no_privacy"]), *finals]

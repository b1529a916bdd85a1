"""Tables of shaped noise: GP, GEP and spectral with one network, each tuned with the same number of trials."""

from itertools import product

from recipes.tables.types import Cell, Run, Table

LINES = {
    "gp": "GP",
    "gep": "GEP, k = 400",
    "gep_half": "GEP, k = 400, S₂ = S₁/2",
    "spectral": "spectral",
    "preconditioned": "spectral, preconditioned",
}
RATES = (1.0, 2.0, 4.0, 8.0)
CHOSEN: dict[str, float] = {"gp": 4.0, "gep": 1.0, "preconditioned": 2.0}
"""The learning rate with the best validation accuracy among `RATES`, for mechanisms whose trials are complete."""

OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ema": ("weights averaged", ("callbacks=ema",)),
    "copies": ("four random copies of an image", ("+model.copies=4",)),
    "residual_memory": ("running mean of the noisy residual", ("+mechanism.residual_memory=0.9",)),
    "synthetic": ("pink noise for public images", ("aux=synthetic", "aux.count=5000")),
}
TRIED_ALONE = (
    ("gp", "ema"),
    ("gp", "copies"),
    ("gep", "residual_memory"),
    ("gep", "synthetic"),
    ("preconditioned", "ema"),
    ("preconditioned", "copies"),
    ("preconditioned", "synthetic"),
)
"""None of the options costs privacy; pink noise needs no public images."""

CIFAR10_TRIALS = Table(
    name="cifar10_trials",
    title="CIFAR-10 with a small network: how learning rates were chosen",
    about=(
        "Four learning rates for each mechanism, judged on 5000 training images that were held out; no test image had "
        "a say. S = 1 for GP and spectral. GEP's thresholds are chosen on public data (S₁ = 1, S₂ = 0.18), or S₁ = 1 "
        "and S₂ = 0.5."
    ),
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

PROBE_LINES = {"gp": ("GP", "gp_eps0_5"), "spectral": ("spectral", "spectral")}
PROBE_RATES, PROBE_THRESHOLDS = (0.01, 0.05, 0.1), (0.01, 0.1, 1.0)
"""What the paper says it tried."""


def probe_trial(name: str, rate: float, threshold: float) -> str:
    """The name of a cell."""
    return f"{name}_lr{rate:g}_S{threshold:g}".replace(".", "_")


PROBE_TRIALS = Table(
    name="probe_trials",
    title="Features of CIFAR-10: how learning rates and thresholds were chosen",
    about=(
        "The learning rates and thresholds that the paper says it tried, for GP and for spectral, at ε = 0.5, judged "
        "on 5000 training images that were held out."
    ),
    judged_by="validation_accuracy",
    follows="validation_accuracy",
    cells=tuple(
        Cell(
            probe_trial(name, rate, threshold),
            "features of CIFAR-10, ε = 0.5",
            f"{line}, learning rate {rate:g}, S = {threshold:g}",
            f"linear_probe/{experiment}",
            overrides=("data.validation_size=5000", f"optimizer.lr={rate}", f"mechanism.clip_norm={threshold}"),
        )
        for (name, (line, experiment)), rate, threshold in product(PROBE_LINES.items(), PROBE_RATES, PROBE_THRESHOLDS)
    ),
)

NOT_PRIVATE = Cell("no_privacy", "CIFAR-10, small network", "no privacy", "no_privacy/cifar10_cnn")

CIFAR10_CNN = Table(
    name="cifar10_cnn",
    title="Shaped noise: CIFAR-10 with a small network",
    about=(
        "A network of 61 162 parameters, batches of 1000, ten epochs, at a learning rate of each mechanism's own, the "
        "best of four at ε = 2 on validation images (the next table). Noise is calibrated by PLD."
    ),
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
                f"{LINES[name]}, {OPTIONS[option][0]}",
                f"cifar10_cnn/{name}",
                overrides=(f"optimizer.lr={CHOSEN[name]}", *OPTIONS[option][1]),
            )
            for name, option in TRIED_ALONE
        ),
    ),
)


def compared_cells(epsilon: float) -> dict[str, str]:
    """The cells of the mechanisms whose learning rate is chosen; of the two forms of spectral, the better one."""
    names = {"GP": "gp", "GEP": "gep", "spectral": "preconditioned"}
    return {shown: f"{name}_eps{epsilon:g}" for shown, name in names.items() if name in CHOSEN}


def first_runs() -> list[Run]:
    """The runs that compare the mechanisms and the trials they rest on; one seed of each before the next."""
    trials = CIFAR10_TRIALS.runs([f"{name}_lr*" for name in ("gp", "preconditioned", "gep", "gep_half")])
    finals = [
        run for epsilon in (2, 8) for seed in (0, 1, 2) for run in CIFAR10_CNN.runs([f"*_eps{epsilon}"], seeds=[seed])
    ]
    return [*CIFAR10_CNN.runs(["no_privacy"]), *trials, *finals]

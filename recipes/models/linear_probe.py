"""One linear layer on features that a pre-trained network computed."""

from torch import Tensor, nn

from lightning_gep.arguments import positive_integer
from recipes.models.inputs import check_inputs


class LinearProbe(nn.Module):
    """Logits from features, without a bias: features × classes parameters. It starts at zero: the problem is convex."""

    def __init__(self, num_features: int = 4096, num_classes: int = 10) -> None:
        super().__init__()
        positive_integer("num_features", num_features, "It is the length of a feature vector, e.g. 4096.")
        positive_integer("num_classes", num_classes, "It is the number of classes, e.g. 10.")
        self.linear = nn.Linear(num_features, num_classes, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (n × classes) for features (n × length)."""
        check_inputs(self, features, (self.linear.in_features,))
        logits: Tensor = self.linear(features)
        return logits

"""A small transformer encoder that classifies texts."""

import torch
from torch import Tensor, nn

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError


class TextEncoder(nn.Module):
    """Embedding, transformer layers without dropout, mean over the tokens, one linear layer."""

    def __init__(
        self,
        vocabulary: int = 1000,
        length: int = 32,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        num_classes: int = 10,
    ) -> None:
        super().__init__()
        sizes = {"vocabulary": vocabulary, "length": length, "width": width, "heads": heads, "layers": layers}
        for name, value in {**sizes, "num_classes": num_classes}.items():
            positive_integer(name, value, "It is a size of the network.")
        if width % heads:
            raise ConfigurationError(
                f"width={width} cannot be divided into heads={heads}. Use a multiple of it.", setting="width"
            )
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (n × classes) for tokens (n × length)."""
        inner = self.layers(self.tokens(tokens) + self.places)
        logits: Tensor = self.output(inner.mean(dim=1))
        return logits

"""Public modules by name, in small sizes, and what becomes of each under GEPStrategy: one list for docs and tests.

What a package brings is imported when its module is built, so the list can be read without any of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations
from torch.utils.data import IterableDataset, default_collate

from tests.gradients_zoo import ZOO, Apply, Classifier

RECORDS, CLASSES, WORDS, LENGTH = 6, 4, 30, 12


@dataclass(frozen=True)
class Entry:
    """A module as it is published, or after one change, with records that it accepts."""

    module: Callable[[], LightningModule]
    records: Callable[[], Any]
    package: str = "torch"
    change: str = ""
    """The change, in Markdown; empty if it works as it is."""
    before: Callable[[], LightningModule] | None = None
    """The module without the change."""
    refused: str = ""
    """Why, in Markdown; empty if it works."""
    says: str = ""
    """Words of the refusal, of the module itself or of that before the change."""
    random: bool = False
    """In training: gradients are not those of another pass."""
    slow: bool = False
    collate: Callable[[Any], Any] = default_collate


def images(size: int = 32, channels: int = 3, count: int = RECORDS) -> Any:
    """Images and a label for each."""
    return [(torch.randn(channels, size, size), torch.randint(CLASSES, ())) for _ in range(count)]


def masks(size: int = 32, channels: int = 3) -> Any:
    """Images and a label for every pixel."""
    return [(torch.randn(channels, size, size), torch.randint(CLASSES, (size, size))) for _ in range(RECORDS)]


def texts(labels: Callable[[], Tensor], mask: bool = True) -> Any:
    """Tokens of one length, half of them padding, as a Hugging Face collator gives them."""

    def record() -> dict[str, Tensor]:
        kept = (torch.arange(LENGTH) < int(torch.randint(LENGTH // 2, LENGTH, ()))).long()
        tokens = {"input_ids": torch.randint(1, WORDS, (LENGTH,)), "labels": labels()}
        return {**tokens, "attention_mask": kept} if mask else tokens

    return [record() for _ in range(RECORDS)]


def class_of_text() -> Any:
    return texts(lambda: torch.randint(CLASSES, ()))


def next_words(mask: bool = False) -> Any:
    return texts(lambda: torch.randint(1, WORDS, (LENGTH,)), mask)


def vectors(size: int = 32, count: int = RECORDS) -> Any:
    return [torch.randn(size) for _ in range(count)]


def of_zoo(name: str, package: str = "torch", **settings: Any) -> Entry:
    """A module of the zoo of per-sample gradients, which has its own batch."""
    case = ZOO[name]

    def records() -> Any:
        batch = case.build()[1]
        return list(batch) if isinstance(batch, Tensor) else list(zip(*batch, strict=True))

    return Entry(lambda: case.build()[0], records, package, random=case.random, **settings)


class Step(LightningModule):
    """A network with a loss that is given as a function of it and the batch."""

    def __init__(self, network: nn.Module, loss: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        return self.loss(self.network, batch)


class Frozen(Classifier):
    """A classifier whose BatchNorm keeps the statistics it came with."""

    def on_train_epoch_start(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()


FREEZE = "`on_train_epoch_start`: `.eval()` of every BatchNorm"
MIXES = "BatchNorm mixes them"
MANUAL = "manual optimization would step without noise"
CONTRAST = "every record is compared with the others of its batch"
GROUP_NORM = "`norm_layer=lambda c: nn.GroupNorm(8, c)`"


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels)


def hugging_face(model: Callable[[], nn.Module]) -> Callable[[], LightningModule]:
    """Models that compute their own loss."""
    return lambda: Step(model(), lambda network, batch: network(**batch).loss)


# torchvision and timm


def vision(name: str, **settings: Any) -> Callable[..., LightningModule]:
    def build(wrap: type[LightningModule] = Classifier, **more: Any) -> LightningModule:
        from torchvision import models

        return wrap(getattr(models, name)(num_classes=CLASSES, **settings, **more))

    return build


def vit_of_torchvision() -> LightningModule:
    from torchvision.models import VisionTransformer

    size = {"num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    return Classifier(VisionTransformer(image_size=32, patch_size=8, num_classes=CLASSES, **size))


def swin() -> LightningModule:
    from torchvision.models import SwinTransformer

    return Classifier(SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=CLASSES))


def convnext() -> LightningModule:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return Classifier(ConvNeXt([CNBlockConfig(24, 48, 2), CNBlockConfig(48, None, 2)], num_classes=CLASSES))


def detector() -> LightningModule:
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

    network = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=CLASSES)
    return Step(network, lambda network, batch: sum(network(list(batch[0]), list(batch[1])).values()))


def boxes() -> Any:
    box = torch.tensor([[2.0, 2.0, 20.0, 20.0]])
    return [(torch.rand(3, 32, 32), {"boxes": box, "labels": torch.ones(1).long()}) for _ in range(RECORDS)]


def of_timm(name: str, **settings: Any) -> Callable[..., LightningModule]:
    def build(**more: Any) -> LightningModule:
        import timm

        return Classifier(timm.create_model(name, num_classes=CLASSES, **settings, **more))

    return build


# Segmentation and medicine


def smp_unet(wrap: type[LightningModule] = Classifier) -> LightningModule:
    import segmentation_models_pytorch as smp

    small = {"encoder_depth": 3, "decoder_channels": (32, 16, 8)}
    return wrap(smp.Unet("mobilenet_v2", encoder_weights=None, classes=CLASSES, **small))


def of_monai(name: str, **settings: Any) -> Callable[..., LightningModule]:
    def build(**more: Any) -> LightningModule:
        from monai.networks import nets

        return Classifier(getattr(nets, name)(spatial_dims=2, in_channels=1, **settings, **more))

    return build


# Text and speech


def transformer(name: str, lora: bool = False, **settings: Any) -> Callable[[], nn.Module]:
    """A model of `transformers` made from its configuration, without pretrained weights."""

    def build() -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        model = kind(kind.config_class(vocab_size=WORDS, **settings))
        if not lora:
            return model
        import peft

        return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["query", "value", "c_attn"]))

    return build


def vit_of_hugging_face() -> nn.Module:
    import transformers

    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=CLASSES, **VIT)
    return transformers.ViTForImageClassification(config)


VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
BERT = {**VIT, "num_labels": CLASSES}
DISTIL = {"num_labels": CLASSES, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
LLAMA = {**VIT, "num_key_value_heads": 2, "max_position_embeddings": LENGTH}
WAV2VEC = {
    **BERT,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}


def waves() -> Any:
    return [{"input_values": torch.randn(400), "labels": torch.randint(CLASSES, ())} for _ in range(RECORDS)]


# Lightning's own demos


def demo(path: str, **settings: Any) -> Callable[[], LightningModule]:
    def build() -> LightningModule:
        from lightning.pytorch import demos
        from lightning.pytorch.demos import boring_classes, lstm

        place = {"boring_classes": boring_classes, "lstm": lstm}.get(path.split(".")[0], demos)
        return getattr(place, path.split(".")[-1])(**settings)

    return build


DEMO = demo("boring_classes.DemoModel")


def sentences() -> Any:
    words = [torch.randint(WORDS, (LENGTH + 1,)) for _ in range(RECORDS)]
    return [(text[:-1], text[1:]) for text in words]


# What the official tutorials build, written anew in a few lines each


def autoencoder() -> LightningModule:
    encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(8 * 64, 16))
    decoder = nn.Sequential(nn.Linear(16, 8 * 64), nn.Unflatten(1, (8, 8, 8)), nn.ConvTranspose2d(8, 1, 4, 2, 1))
    return Step(nn.Sequential(encoder, decoder), lambda network, batch: F.mse_loss(network(batch[0]), batch[0]))


class MaskedConvolution(nn.Conv2d):
    """Sees the pixels above and to the left, as in PixelCNN."""

    def __init__(self, *sizes: int, in_place: bool = False) -> None:
        super().__init__(*sizes, padding=sizes[-1] // 2)
        self.in_place, (high, wide) = in_place, self.kernel_size
        mask = torch.ones(high, wide)
        mask[high // 2, wide // 2 :] = 0
        mask[high // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.weight.data *= self.mask
            return super().forward(x)
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


def pixel_cnn(in_place: bool = False) -> LightningModule:
    network = nn.Sequential(MaskedConvolution(1, 8, 5, in_place=in_place), nn.ELU(), nn.Conv2d(8, CLASSES, 1))
    return Classifier(network)


class Coupling(nn.Module):
    """A layer of RealNVP."""

    def __init__(self, size: int, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.network = nn.Sequential(nn.Linear(size // 2, 16), nn.Tanh(), nn.Linear(16, size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = x.chunk(2, 1)[:: -1 if self.flip else 1]
        scale, shift = self.network(kept).chunk(2, 1)
        moved = moved * scale.tanh().exp() + shift
        return torch.cat([moved, kept] if self.flip else [kept, moved], 1), scale.tanh().sum(1)


def real_nvp() -> LightningModule:
    def loss(layers: Any, x: Tensor) -> Tensor:
        total = torch.zeros_like(x[:, 0])
        for layer in layers:
            x, volume = layer(x)
            total = total + volume
        return (0.5 * x.square().sum(1) - total).mean()

    return Step(nn.ModuleList([Coupling(32, bool(i % 2)) for i in range(4)]), loss)


class GAN(LightningModule):
    """A generator and a discriminator, each with its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = nn.Linear(4, 32), nn.Linear(32, 1)

    def training_step(self, batch: Any, batch_index: int) -> None:
        for optimizer, sign, fake in zip(self.optimizers(), (1, -1), (True, False), strict=True):
            made = self.generator(torch.randn(len(batch), 4))
            self.manual_backward(sign * self.discriminator(made if fake else batch).mean())
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters()) for part in (self.generator, self.discriminator)]


def sim_clr() -> LightningModule:
    def loss(network: Any, views: Any) -> Tensor:
        first, second = (F.normalize(network(view), dim=1) for view in views)
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(len(first)))

    return Step(nn.Linear(32, 8), loss)


def barlow_twins() -> LightningModule:
    def loss(network: Any, views: Any) -> Tensor:
        first, second = (network(view) for view in views)
        first, second = ((z - z.mean(0)) / (z.std(0) + 1e-4) for z in (first, second))
        return (first.T @ second / len(first) - torch.eye(8)).square().sum()

    return Step(nn.Linear(32, 8), loss)


def views() -> Any:
    return [(x, x + 0.1 * torch.randn_like(x)) for x in vectors()]


class BYOL(LightningModule):
    """The target network follows the trained one at every step."""

    def __init__(self, in_hook: bool) -> None:
        super().__init__()
        self.trained, self.predictor, self.target = nn.Linear(32, 8), nn.Linear(8, 8), nn.Linear(32, 8)
        self.target.requires_grad_(False)
        self.in_hook = in_hook

    @torch.no_grad()
    def follow(self) -> None:
        for slow, fast in zip(self.target.parameters(), self.trained.parameters(), strict=True):
            slow.lerp_(fast, 0.01)

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        first, second = batch
        loss = -F.cosine_similarity(self.predictor(self.trained(first)), self.target(second)).mean()
        if not self.in_hook:
            self.follow()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        if self.in_hook:
            self.follow()


def diffusion() -> LightningModule:
    def loss(network: Any, x: Tensor) -> Tensor:
        noise, time = torch.randn_like(x), torch.rand(len(x), 1)
        return F.mse_loss(network(torch.cat([(1 - time) * x + time * noise, time], 1)), noise - x)

    return Step(nn.Sequential(nn.Linear(33, 32), nn.SiLU(), nn.Linear(32, 32)), loss)


def distillation() -> LightningModule:
    teacher = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, CLASSES)).requires_grad_(False).eval()
    student = nn.Linear(32, CLASSES)

    def loss(networks: Any, x: Tensor) -> Tensor:
        return F.kl_div(networks[0](x).log_softmax(1), networks[1](x).softmax(1), reduction="batchmean")

    return Step(nn.ModuleList([student, teacher]), loss)


def triplets() -> LightningModule:
    return Step(nn.Linear(32, 8), lambda network, batch: F.triplet_margin_loss(*map(network, batch)))


def three_views() -> Any:
    return [(x, x + 0.1, torch.randn(32)) for x in vectors()]


class Quantized(LightningModule):
    """A VQ-VAE whose codebook is a moving average of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(32, 4), nn.Linear(4, 32)
        self.register_buffer("codes", torch.randn(8, 4))

    def training_step(self, batch: Tensor, batch_index: int) -> Tensor:
        encoded = self.encoder(batch)
        nearest = self.codes[torch.cdist(encoded, self.codes).argmin(1)]
        self.codes.lerp_(encoded.detach().mean(0).expand(8, 4), 0.01)
        return F.mse_loss(self.decoder(encoded + (nearest - encoded).detach()), batch)


class Plays(IterableDataset):  # type: ignore[type-arg]
    """Episodes, played as they are asked for."""

    def __iter__(self) -> Any:
        while True:
            yield torch.randn(4), torch.randint(2, ()), torch.randn(())


def dqn() -> LightningModule:
    def loss(network: Any, batch: Any) -> Tensor:
        state, action, reward = batch
        return F.mse_loss(network(state).gather(1, action[:, None])[:, 0], reward)

    return Step(nn.Linear(4, 2), loss)


# Recommenders, tables, time series, graphs


def ratings() -> Any:
    return [(torch.tensor(i), torch.randint(9, ()), 5 * torch.rand(())) for i in range(RECORDS)]


class Factors(LightningModule):
    """Matrix factorization of ratings."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(RECORDS, 8, sparse=sparse), nn.Embedding(9, 8, sparse=sparse)

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        user, item, rating = batch
        return F.mse_loss((self.users(user) * self.items(item)).sum(1), rating)


class DeepFM(LightningModule):
    """Factorization machine and perceptron over the same embedded categories."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.embedding = nn.Embedding(WORDS, 1), nn.Embedding(WORDS, 8)
        self.deep = nn.Sequential(nn.Flatten(), nn.Linear(5 * 8 + 3, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        categories, numbers, label = batch
        e = self.embedding(categories)
        pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
        deep = self.deep(torch.cat([e.flatten(1), numbers], 1))[:, 0]
        return F.binary_cross_entropy_with_logits(self.linear(categories).sum((1, 2)) + pairs + deep, label)


def clicks() -> Any:
    one = lambda: (torch.randint(WORDS, (5,)), torch.randn(3), torch.randint(2, ()).float())  # noqa: E731
    return [one() for _ in range(RECORDS)]


class FeatureTransformer(nn.Module):
    """FT-Transformer: each number of a row becomes a token."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.token = nn.Parameter(torch.randn(32, 8)), nn.Parameter(torch.zeros(1, 1, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(len(x), -1, -1), x[:, :, None] * self.weight], 1)
        return self.head(self.encoder(tokens)[:, 0])


def rows() -> Any:
    return [(x, torch.randint(CLASSES, ())) for x in vectors()]


def n_beats() -> LightningModule:
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 24 + 8)) for _ in range(3)])

    def loss(network: Any, series: Tensor) -> Tensor:
        rest, forecast = series[:, :24], torch.zeros_like(series[:, 24:])
        for block in network:
            back, ahead = block(rest).split((24, 8), 1)
            rest, forecast = rest - back, forecast + ahead
        return F.l1_loss(forecast, series[:, 24:])

    return Step(blocks, loss)


def temporal_convolutions() -> LightningModule:
    norm = parametrizations.weight_norm
    network = nn.Sequential(
        norm(nn.Conv1d(1, 8, 3, padding=2, dilation=2)), nn.ReLU(), norm(nn.Conv1d(8, 1, 3, padding=4, dilation=4))
    )
    return Step(network, lambda network, x: F.mse_loss(network(x[:, None, :-1])[:, 0], x[:, 1:]))


def graph_network() -> LightningModule:
    from torch_geometric.nn import GCN, global_mean_pool

    def loss(network: Any, batch: Any) -> Tensor:
        return F.cross_entropy(global_mean_pool(network(batch.x, batch.edge_index), batch.batch), batch.y)

    return Step(GCN(5, 8, 2, CLASSES), loss)


def graphs() -> Any:
    from torch_geometric.data import Data

    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    return [Data(torch.randn(3, 5), edges, y=torch.randint(CLASSES, (1,))) for _ in range(RECORDS)]


def graph_batch(records: Any) -> Any:
    from torch_geometric.data import Batch

    return Batch.from_data_list(records)


def dense_graph_network() -> LightningModule:
    from torch_geometric.nn import DenseGCNConv

    layers = nn.ModuleList([DenseGCNConv(5, 8), DenseGCNConv(8, CLASSES)])

    def loss(network: Any, batch: Any) -> Tensor:
        x, adjacency, label = batch
        return F.cross_entropy(network[1](network[0](x, adjacency).relu(), adjacency).mean(1), label)

    return Step(layers, loss)


def dense_graphs() -> Any:
    one = lambda: (torch.randn(3, 5), torch.rand(3, 3).round(), torch.randint(CLASSES, ()))  # noqa: E731
    return [one() for _ in range(RECORDS)]


def augmented() -> LightningModule:
    from kornia.augmentation import RandomHorizontalFlip

    return Classifier(nn.Sequential(RandomHorizontalFlip(p=0.5), nn.Flatten(), nn.Linear(3 * 64, CLASSES)))


def mean_of_demo(self: Any, batch: Any, batch_index: int) -> Tensor:
    return self(batch).mean()


RESNET, MOBILENET, EFFICIENTNET = vision("resnet18"), vision("mobilenet_v3_small"), vision("efficientnet_b0")
DENSENET = vision("DenseNet", growth_rate=8, block_config=(2, 2), num_init_features=16)
TIMM_RESNET = of_timm("resnet10t")
TIMM_VIT = of_timm("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
MONAI_DENSENET = of_monai("DenseNet", out_channels=CLASSES, init_features=16, growth_rate=8, block_config=(2, 2))
GRAY_IMAGES, GRAY_MASKS = partial(images, channels=1), partial(masks, channels=1)


def torchvision(module: Callable[[], LightningModule], **settings: Any) -> Entry:
    return Entry(module, images, "torchvision", **settings)


def with_group_norm(module: Callable[..., LightningModule], **settings: Any) -> Entry:
    changed = partial(module, norm_layer=group_norm)
    return torchvision(changed, change=GROUP_NORM, before=module, says=MIXES, slow=True, **settings)


def text_model(name: str, records: Callable[[], Any], *, random: bool = True, lora: bool = False, **size: Any) -> Entry:
    package = "peft" if lora else "transformers"
    return Entry(hugging_face(transformer(name, lora, **size)), records, package, random=random)


PUBLIC: dict[str, Entry] = {
    "`nn.LSTM`, language model": of_zoo("nn.LSTM"),
    "`nn.GRU`, language model": of_zoo("nn.GRU"),
    "`nn.MultiheadAttention`": of_zoo("nn.MultiheadAttention"),
    "`nn.TransformerEncoder`": of_zoo("nn.TransformerEncoder"),
    "Lightning's `BoringModel`": Entry(demo("boring_classes.BoringModel"), vectors),
    "Lightning's `DemoModel`": Entry(
        lambda: type("Mean", (type(DEMO()),), {"training_step": mean_of_demo})(),
        vectors,
        change="`.mean()` of the outputs in place of `.sum()`",
        before=DEMO,
        says="summed over the batch",
    ),
    "Lightning's `LightningTransformer`": Entry(
        demo("LightningTransformer", vocab_size=WORDS), sentences, random=True, slow=True
    ),
    "Lightning's `LightningLSTM`": Entry(
        demo("lstm.LightningLSTM", vocab_size=WORDS),
        sentences,
        refused="its hidden state carries records into the next batch",
        says="carries state",
    ),
    "Lightning's `ManualOptimBoringModel`": Entry(
        demo("boring_classes.ManualOptimBoringModel"), vectors, refused=MANUAL, says="manual optimization"
    ),
    "torchvision `resnet18`": with_group_norm(RESNET),
    "torchvision `mobilenet_v3_small`": with_group_norm(MOBILENET, random=True),
    "torchvision `efficientnet_b0`": with_group_norm(EFFICIENTNET, random=True),
    "torchvision `DenseNet`": torchvision(partial(DENSENET, Frozen), change=FREEZE, before=DENSENET, says=MIXES),
    "torchvision `squeezenet1_1`": torchvision(vision("squeezenet1_1"), random=True),
    "torchvision `VisionTransformer`": torchvision(vit_of_torchvision),
    "torchvision `SwinTransformer`": torchvision(swin, random=True),
    "torchvision `ConvNeXt`": torchvision(convnext),
    "torchvision `fasterrcnn_mobilenet_v3`": Entry(
        detector,
        boxes,
        "torchvision",
        refused="its batch is a list of images and a list of targets, which does not say where a record is",
        says="number of records in a batch is not clear",
        collate=lambda records: tuple(zip(*records, strict=True)),
    ),
    "timm `vit_tiny`": Entry(TIMM_VIT, images, "timm"),
    "timm `convnext_atto`": Entry(of_timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)), images, "timm"),
    "timm `resnet10t`": Entry(
        partial(TIMM_RESNET, norm_layer="groupnorm1"),
        images,
        "timm",
        change='`norm_layer="groupnorm1"`',
        before=TIMM_RESNET,
        says=MIXES,
        slow=True,
    ),
    "segmentation_models_pytorch `Unet`": Entry(
        partial(smp_unet, Frozen),
        masks,
        "segmentation_models_pytorch",
        change=FREEZE,
        before=smp_unet,
        says=MIXES,
        slow=True,
    ),
    "MONAI `UNet`": Entry(of_monai("UNet", out_channels=CLASSES, channels=(8, 16), strides=(2,)), GRAY_MASKS, "monai"),
    "MONAI `SegResNet`": Entry(of_monai("SegResNet", out_channels=CLASSES, init_filters=8), GRAY_MASKS, "monai"),
    "MONAI `DenseNet`": Entry(
        partial(MONAI_DENSENET, norm=("group", {"num_groups": 4})),
        GRAY_IMAGES,
        "monai",
        change='`norm=("group", {"num_groups": 4})`',
        before=MONAI_DENSENET,
        says=MIXES,
    ),
    "`BertForSequenceClassification`": text_model("BertForSequenceClassification", class_of_text, **BERT),
    "`DistilBertForSequenceClassification`": text_model("DistilBertForSequenceClassification", class_of_text, **DISTIL),
    "`RobertaForSequenceClassification`": text_model("RobertaForSequenceClassification", class_of_text, **BERT),
    "`GPT2LMHeadModel`": text_model("GPT2LMHeadModel", next_words, **GPT2),
    "`LlamaForCausalLM`": text_model("LlamaForCausalLM", next_words, random=False, **LLAMA),
    "`T5ForConditionalGeneration`": text_model("T5ForConditionalGeneration", next_words, **T5),
    "`ViTForImageClassification`": Entry(
        lambda: Classifier(Apply(lambda output: output.logits, vit_of_hugging_face())), images, "transformers"
    ),
    "`Wav2Vec2ForSequenceClassification`": text_model("Wav2Vec2ForSequenceClassification", waves, **WAV2VEC),
    "peft LoRA of BERT": text_model("BertForSequenceClassification", class_of_text, lora=True, **BERT),
    "peft LoRA of GPT-2": text_model("GPT2LMHeadModel", next_words, lora=True, **GPT2),
    "convolutional autoencoder": Entry(autoencoder, partial(images, 16, 1)),
    "variational autoencoder": of_zoo("randn in the loss (VAE)"),
    "PixelCNN": Entry(
        pixel_cnn,
        partial(masks, 16, 1),
        change="`self.weight * self.mask` in `forward` in place of writing to `self.weight`",
        before=partial(pixel_cnn, True),
        says="self.weight * self.mask",
    ),
    "RealNVP (normalizing flow)": Entry(real_nvp, vectors),
    "flow matching (diffusion)": Entry(diffusion, vectors, random=True),
    "knowledge distillation": Entry(distillation, vectors),
    "triplet loss, a triplet per record": Entry(triplets, three_views),
    "GAN": Entry(GAN, vectors, refused=MANUAL, says="manual optimization"),
    "SimCLR": Entry(sim_clr, views, refused=CONTRAST, says="depends on the other records"),
    "Barlow Twins": Entry(barlow_twins, views, refused=CONTRAST, says="depends on the other records"),
    "BYOL": Entry(
        partial(BYOL, True),
        views,
        change="move the target network in `on_train_batch_end`, not in `training_step`",
        before=partial(BYOL, False),
        says="training_step changes target.weight",
    ),
    "VQ-VAE with a moving-average codebook": Entry(
        Quantized, vectors, refused="the codebook would be released without noise", says="training_step changes codes"
    ),
    "DQN on played episodes": Entry(
        dqn, Plays, refused="an `IterableDataset` cannot be sampled by record", says="cannot be sampled by index"
    ),
    "kornia augmentation in the module": Entry(augmented, partial(images, 8), "kornia", random=True),
    "matrix factorization": Entry(
        Factors, ratings, change="`sparse=False`", before=partial(Factors, True), says="Set sparse=False"
    ),
    "DeepFM": Entry(DeepFM, clicks, random=True),
    "FT-Transformer": Entry(lambda: Classifier(FeatureTransformer()), rows, random=True),
    "N-BEATS": Entry(n_beats, vectors),
    "temporal convolutions with weight norm": Entry(temporal_convolutions, vectors),
    "PyG `GCN` on graph batches": Entry(
        graph_network,
        graphs,
        "torch_geometric",
        refused="a `DataBatch` is one large graph, whose records cannot be told apart",
        says="whose records cannot be told apart",
        collate=graph_batch,
    ),
    "PyG `DenseGCNConv`": Entry(dense_graph_network, dense_graphs, "torch_geometric"),
}
"""By what the table calls them."""

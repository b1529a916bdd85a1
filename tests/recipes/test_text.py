"""The recipes of text and of a vision transformer, on small models from their configuration and a few records."""

import copy
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import VisionTransformer

pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.masking_utils")

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"accountant": "rdp", "clip_norm": 0.5}


def small_encoder(*_, **__):
    size = {"hidden_size": 16, "num_hidden_layers": 6, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.BertModel(transformers.BertConfig(vocab_size=60, **size), add_pooling_layer=False)


def records(classification, count, seed):
    """Texts of several lengths, padded, and a topic for each."""
    torch.manual_seed(seed)
    words, lengths = torch.randint(1, 60, (count, 12)), torch.randint(4, 13, (count, 1))
    padded = torch.where(torch.arange(12) < lengths, words, classification.PADDING)
    return TensorDataset(padded, torch.randint(8, (count,)))


def test_classification_trains_the_adapter_alone_and_saves_it_as_peft_does(monkeypatch, tmp_path):
    from recipes.text import classification

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(classification.AutoModel, "from_pretrained", small_encoder)
    monkeypatch.setattr(classification, "encoder_folder", lambda: "")
    module = classification.Topic()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    strategy = classification.GEPStrategy(epsilon=3.0, delta=1e-3, mechanism="spectral", num_anchors=10, **QUICK)
    trainer = classification.Trainer(
        max_epochs=1, strategy=strategy, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    public = DataLoader(classification.RandomLabels(records(classification, 40, seed=2), 8), batch_size=20)
    module.aux_dataloader = lambda: public
    trainer.fit(module, DataLoader(records(classification, 32, seed=1), batch_size=8, shuffle=True))
    assert strategy.prepared.gradients.backend.name == "ghost"
    assert 2.5 < strategy.privacy.epsilon() <= 3.0
    moved = {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name, p in module.named_parameters() if p.requires_grad}
    assert {"lora" in name or name.startswith("head.") for name in moved} == {True}

    module.encoder.save_pretrained(tmp_path / "adapter")
    from peft import PeftModel

    base = copy.deepcopy(module.encoder).unload()
    again, words = PeftModel.from_pretrained(base, tmp_path / "adapter").eval(), torch.randint(1, 60, (3, 12))
    with torch.no_grad():
        found = again(input_ids=words).last_hidden_state
        torch.testing.assert_close(found, module.encoder.eval()(input_ids=words).last_hidden_state)


def test_the_language_model_trains_and_still_generates(monkeypatch, tmp_path):
    from recipes.text import language_model

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(language_model, "stories", lambda _: [("", "a post of some length " * n) for n in range(1, 33)])
    module, epsilon = language_model.main(epsilon=5.0, batch_size=8, accountant="rdp")
    assert 4.0 < epsilon <= 5.0
    assert len(module.write("the ", length=5).encode(errors="replace")) >= 9
    assert module.model.lm_head.weight is module.model.transformer.wte.weight  # still tied
    module.model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_a_vision_transformer_trains_its_head_and_adapter(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    recipe = runpy.run_path(str(ROOT / "recipes" / "vision_transformer.py"))
    torch.manual_seed(0)
    size = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 16}
    network, images = VisionTransformer(**size), TensorDataset(torch.randn(24, 3, 16, 16), torch.randint(2, (24,)))
    nn.init.normal_(network.class_token)
    module, epsilon = recipe["main"](network, images, 2, epochs=1, batch_size=6, delta=1e-2, accountant="rdp")
    assert 6.0 < epsilon <= 8.0
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert all("lora" in name or "heads" in name for name in trained)
    assert any("lora" in name for name in trained)

"""Hugging Face models as they are: attention masks, padding, tied embeddings, LoRA and checkpointing."""

from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import default_collate

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients import Backend, choose_backend
from lightning_gep.gradients.ghost import GhostGradients
from tests.gradients.test_zoo import slow_gradients
from tests.gradients_zoo import N, choose, loss_of
from tests.public_modules import BERT, GPT2, LLAMA, T5, class_of_text, hugging_face, next_words, transformer

pytest.importorskip("peft")
masking_utils = pytest.importorskip("transformers.masking_utils")

bert = transformer("BertForSequenceClassification", **BERT)


def head_only() -> nn.Module:
    model: Any = bert()
    model.bert.requires_grad_(False)
    return model


MODELS = {
    "bert": bert,
    "gpt2": transformer("GPT2LMHeadModel", **GPT2),
    "llama": transformer("LlamaForCausalLM", **LLAMA),
    "t5": transformer("T5ForConditionalGeneration", **T5),
    "bert with LoRA": transformer("BertForSequenceClassification", lora=True, **BERT),
    "head of bert": head_only,
}


def texts(model: nn.Module) -> Any:
    """Padded to one length; language models do not learn the padding."""
    if any("classifier" in name for name, _ in model.named_modules()):
        return default_collate(class_of_text())
    batch = default_collate(next_words(mask=True))
    return {**batch, "labels": torch.where(batch["attention_mask"] > 0, batch["input_ids"], -100)}


def settled(make: Any) -> LightningModule:
    """A model without dropout whose LoRA does something already."""
    torch.manual_seed(0)
    module = hugging_face(make)().eval()
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return module


def factored_by(module: LightningModule, batch: Any) -> Any:
    groups = ParameterGroups.from_module(module)
    ghost: Backend = choose_backend(module, loss_of(module), groups, batch, "ghost", rows_needed=False)
    assert isinstance(ghost, GhostGradients)
    return ghost.factored(batch)


@pytest.mark.parametrize("name", MODELS)
def test_an_attention_mask_leaves_the_fast_path_open(name: str) -> None:
    module = settled(MODELS[name])
    batch, switch = texts(module), masking_utils.is_tracing
    backend = choose(module, batch=batch)
    rows = slow_gradients(module, batch, backend.groups)
    assert backend.name == "functional"
    torch.testing.assert_close(backend(batch), rows, rtol=1e-3, atol=1e-5)

    factored, weights = factored_by(module, batch), torch.rand(N, dtype=torch.float64)
    torch.testing.assert_close(factored.norms().float(), rows.norm(dim=1), rtol=1e-2, atol=0.0)
    torch.testing.assert_close(factored.weighted_sum(weights), weights @ rows.double(), rtol=1e-3, atol=1e-5)
    assert masking_utils.is_tracing is switch  # transformers is left as it was


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_mask_that_masks_nothing_is_no_other_attention(attention: str) -> None:
    module = settled(transformer("BertForSequenceClassification", attn_implementation=attention, **BERT))
    batch = texts(module)
    whole = {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}
    backend = choose(module, batch=batch)
    torch.testing.assert_close(backend(whole), slow_gradients(module, whole, backend.groups), rtol=1e-3, atol=1e-5)


def test_checkpointing_takes_the_loop_until_it_is_disabled() -> None:
    module: Any = hugging_face(bert)().train()
    batch = texts(module)
    module.network.gradient_checkpointing_enable({"use_reentrant": False})
    assert choose(module, batch=batch).name == "loop"
    module.network.gradient_checkpointing_disable()
    assert choose(module, batch=batch).name == "functional"


def loss_under_autocast(module: LightningModule, narrow: bool, batch: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        return loss_of(module)(batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_weights_and_autocast_keep_the_fast_path(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = hugging_face(bert)().to(dtype).train()
    loss, groups = partial(loss_under_autocast, module, dtype is torch.float32), ParameterGroups.from_module(module)
    assert choose_backend(module, loss, groups, texts(module)).name == "functional"

"""Hugging Face models as they are: attention masks, padding, tied embeddings, LoRA and checkpointing."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients import choose_backend
from lightning_gep.gradients.ghost import GhostGradients

peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
masking_utils = pytest.importorskip("transformers.masking_utils")

N, LENGTH, WORDS, PADDING = 6, 10, 50, 0
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "num_labels": 3,
}
SMALL_T5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "decoder_start_token_id": 0}
SMALL_GPT2 = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}


def bert(**settings: Any) -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, **settings))


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SMALL_GPT2))


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def t5() -> nn.Module:
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**SMALL_T5))


def bert_with_lora() -> nn.Module:
    return peft.get_peft_model(bert(), peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))


def gpt2_with_lora() -> nn.Module:
    adapter = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(gpt2(), adapter)


def head_only() -> nn.Module:
    model: Any = bert()
    model.bert.requires_grad_(False)
    return model


MODELS = (bert, gpt2, llama, t5, bert_with_lora, gpt2_with_lora, head_only)


def texts(model: nn.Module) -> dict[str, Tensor]:
    """Padded to one length, the first not at all; language models do not learn the padding."""
    words, lengths = torch.randint(1, WORDS, (N, LENGTH)), LENGTH - torch.arange(N)
    mask = torch.arange(LENGTH) < lengths[:, None]
    words = torch.where(mask, words, PADDING)
    classifies = any("classifier" in name for name, _ in model.named_modules())
    labels = torch.randint(0, 3, (N,)) if classifies else torch.where(mask, words, -100)
    return {"input_ids": words, "attention_mask": mask.long(), "labels": labels}


def slow_gradients(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Backward on every record alone."""
    rows: dict[str, list[Tensor]] = {}
    for i in range(N):
        model.zero_grad()
        model(**{name: values[i : i + 1] for name, values in batch.items()}).loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                grad = parameter.grad
                rows.setdefault(name, []).append(torch.zeros_like(parameter) if grad is None else grad.clone())
    model.zero_grad()
    return {name: torch.stack(parts) for name, parts in rows.items()}


def settled(make: Any) -> nn.Module:
    """A model without dropout whose LoRA does something already."""
    torch.manual_seed(0)
    model = make().eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_an_attention_mask_leaves_the_fast_path_open(make):
    model = settled(make)
    batch, groups = texts(model), ParameterGroups.from_module(model, "balanced")
    switch = masking_utils.is_tracing
    rows = groups.flatten(slow_gradients(model, batch))
    backend = choose_backend(model, lambda b: model(**b).loss, groups, batch)
    assert backend.name == "functional"
    torch.testing.assert_close(backend(batch), rows, rtol=1e-3, atol=1e-5)

    ghost = choose_backend(model, lambda b: model(**b).loss, groups, batch, "ghost", rows_needed=False)
    assert isinstance(ghost, GhostGradients)
    factored, weights = ghost.factored(batch), torch.rand(N, dtype=torch.float64)
    torch.testing.assert_close(factored.norms().float(), rows.norm(dim=1), rtol=1e-2, atol=0.0)
    torch.testing.assert_close(factored.weighted_sum(weights), weights @ rows.double(), rtol=1e-3, atol=1e-5)
    assert masking_utils.is_tracing is switch  # transformers is left as it was


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_mask_that_masks_nothing_is_no_other_attention(attention):
    model = settled(lambda: bert(attn_implementation=attention))
    batch, groups = texts(model), ParameterGroups.from_module(model, "balanced")
    whole = {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}
    backend = choose_backend(model, lambda b: model(**b).loss, groups, batch)
    torch.testing.assert_close(backend(whole), groups.flatten(slow_gradients(model, whole)), rtol=1e-3, atol=1e-5)


def test_checkpointing_takes_the_loop_until_it_is_disabled():
    torch.manual_seed(0)
    model: Any = bert().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    batch, groups = texts(model), ParameterGroups.from_module(model, "balanced")
    assert choose_backend(model, lambda b: model(**b).loss, groups, batch).name == "loop"
    model.gradient_checkpointing_disable()
    assert choose_backend(model, lambda b: model(**b).loss, groups, batch).name == "functional"


def test_bfloat16_weights_and_autocast_keep_the_fast_path():
    torch.manual_seed(0)
    for model, dtype in ((bert(), torch.float32), (bert().bfloat16(), torch.bfloat16)):
        batch, groups = texts(model), ParameterGroups.from_module(model, "balanced")

        def loss(records: Any, model: nn.Module = model, narrow: bool = dtype is torch.float32) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                return model(**records).loss

        assert choose_backend(model.train(), loss, groups, batch).name == "functional"

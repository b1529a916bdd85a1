"""Whether wandb knows an account, found out without a question to the user."""

import inspect

import wandb


def logged_in() -> bool:
    """Whether wandb has an API key or an identity: from its environment variables, its settings or a .netrc file.

    Without one the network is not used. With one wandb may ask its server for the user's name, to greet them.
    """
    if "prompt" in inspect.signature(wandb.login).parameters:
        return bool(wandb.login(prompt=False, verify=False))
    return bool(wandb.api.api_key)  # older versions: there the only way that asks nobody

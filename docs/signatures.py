"""For the API page: defaults and choices of GEPStrategy by value; in the source they are names of its settings."""

from typing import get_origin

from griffe import Extension

from lightning_gep.strategy import settings


class Values(Extension):
    """Replaces `PrivacySettings.epsilon` by None, and `MechanismName` by its Literal."""

    def on_function_instance(self, *, func, **_):
        """Called for every function; only constructors of the strategy have such defaults."""
        for parameter in func.parameters:
            owner, _, name = str(parameter.default).rpartition(".")
            if owner in ("PrivacySettings", "CostSettings"):
                parameter.default = repr(settings.DEFAULTS[name])
                choices = getattr(settings, str(parameter.annotation), None)
                if get_origin(choices) is not None:
                    parameter.annotation = str(choices).removeprefix("typing.")

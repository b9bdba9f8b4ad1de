"""Settings of features become a part of the proxy's own settings.

A feature describes its settings by pydantic models with fields and validators (`FeatureSpec.settings`,
`route_settings`, `tenant_settings`, `upstream_settings`). `with_features` makes one class of the core's model and those
of all features. So the fields of features are fields of `Settings`, and the same code loads, checks and shows them.

The core's fields are validated first. A validator of a feature finds them in `ValidationInfo.data`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from knapcache.errors import InvalidInput
from knapcache.proxy.feature_list import feature_specs, imported

Kind = Literal["settings", "route_settings", "tenant_settings", "upstream_settings"]
Model = TypeVar("Model", bound=BaseModel)


def feature_models(kind: Kind) -> dict[str, type[BaseModel]]:
    """Return the models that features have of a kind, by the features' names. Raises InvalidInput."""
    found: dict[str, type[BaseModel]] = {}
    for spec in feature_specs():
        model = imported(getattr(spec, kind))
        if model is None:
            continue
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise InvalidInput(f"feature {spec.name}: {kind} must be a pydantic model, not {model!r}")
        found[spec.name] = model
    return found


def with_features(kind: Kind) -> Callable[[type[Model]], type[Model]]:
    """Add the fields and validators of features to a model. Use it as the decorator of the core's class.

    Type checkers see the core's class. A feature tells them of its own fields (parts.py).
    """

    def compose(core: type[Model]) -> type[Model]:
        owner = dict.fromkeys(core.model_fields, "the proxy")
        models = feature_models(kind)
        for feature, model in models.items():
            for name in model.model_fields:
                if name in owner:
                    raise InvalidInput(f"feature {feature}: {owner[name]} has a setting {name} already")
                owner[name] = f"feature {feature}"
        # The fields of the last base come first, and its configuration counts.
        bases = (*reversed(models.values()), core)
        names = {"__module__": core.__module__, "__qualname__": core.__qualname__, "__doc__": core.__doc__}
        metaclass: Any = type(core)
        composed: type[Model] = metaclass(core.__name__, bases, names)
        return composed

    return compose


def core_of(model: type[BaseModel]) -> type[BaseModel]:
    """Return a model without the fields of features."""
    core = model.__bases__[-1]
    assert issubclass(core, BaseModel)
    return core

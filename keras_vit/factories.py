"""The variants as functions, with the conventions of `keras.applications`."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from keras_vit.models import BiT, VisionTransformer
from keras_vit.zoo import create_model

P = ParamSpec("P")
T = TypeVar("T")

# Arguments of `create_model` that make no sense for a BiT.
_FOR_TRANSFORMERS = (
    "interpolation",
    "class_token",
    "representation_size",
    "dropout",
    "attention_dropout",
    "drop_path",
    "remat",
)


def _factory(
    create: Callable[Concatenate[str, P], Any],
    variant: str,
    kind: type[T] = VisionTransformer,
    without: tuple[str, ...] = (),
) -> Callable[P, T]:
    """`create` with its variant chosen, under the name and with the signature that users expect.

    Args:
        create: `create_model`.
        variant: The variant.
        kind: The class of the models.
        without: Names of arguments that are not shown, because `create` refuses them for this variant.
    """

    def factory(*args: P.args, **kwargs: P.kwargs) -> T:
        return create(variant, *args, **kwargs)

    functools.update_wrapper(factory, create)
    signature = inspect.signature(create)
    _, *parameters = signature.parameters.values()
    parameters = [parameter for parameter in parameters if parameter.name not in without]
    factory.__signature__ = signature.replace(parameters=parameters, return_annotation=kind)
    factory.__name__ = factory.__qualname__ = variant.replace("-", "_").replace("/", "").replace("+", "_")
    arguments = create.__doc__[create.__doc__.index("        pretrained: ") :]
    for name in without:
        arguments = re.sub(rf" {{8}}{name}: .*\n( {{12}}.*\n)*", "", arguments)
    arguments = arguments.replace("A `VisionTransformer`, or a `BiT`.", f"A `{kind.__name__}`.")
    factory.__doc__ = f"The {variant} of the papers.\n\n    Args:\n{arguments}"
    return factory


ViT_Ti16 = _factory(create_model, "ViT-Ti/16")
ViT_S16 = _factory(create_model, "ViT-S/16")
ViT_S32 = _factory(create_model, "ViT-S/32")
ViT_B8 = _factory(create_model, "ViT-B/8")
ViT_B16 = _factory(create_model, "ViT-B/16")
ViT_B32 = _factory(create_model, "ViT-B/32")
ViT_L16 = _factory(create_model, "ViT-L/16")
ViT_L32 = _factory(create_model, "ViT-L/32")
ViT_H14 = _factory(create_model, "ViT-H/14")
R_ViT_Ti16 = _factory(create_model, "R+ViT-Ti/16")
R26_ViT_S32 = _factory(create_model, "R26+ViT-S/32")
R26_ViT_B32 = _factory(create_model, "R26+ViT-B/32")
R50_ViT_B16 = _factory(create_model, "R50+ViT-B/16")
R50_ViT_L32 = _factory(create_model, "R50+ViT-L/32")
_bit = functools.partial(_factory, create_model, kind=BiT, without=_FOR_TRANSFORMERS)
BiT_R50x1 = _bit("BiT-R50x1")
BiT_R50x3 = _bit("BiT-R50x3")
BiT_R101x1 = _bit("BiT-R101x1")
BiT_R101x3 = _bit("BiT-R101x3")
BiT_R152x2 = _bit("BiT-R152x2")
BiT_R152x4 = _bit("BiT-R152x4")

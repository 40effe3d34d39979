"""The variants as functions, with the conventions of `keras.applications`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from keras_vit.models import VARIANTS, BiT, VisionTransformer, factory_name
from keras_vit.zoo import OF_TRANSFORMERS, create_model

P = ParamSpec("P")
T = TypeVar("T")


def _factory(create: Callable[Concatenate[str, P], Any], variant: str, kind: type[T]) -> Callable[P, T]:
    """`create` with its variant chosen, under the name and with the signature that users expect.

    Args:
        create: `create_model`.
        variant: The variant.
        kind: The class of the models. Arguments that `create` refuses for it are not in the signature.
    """

    @functools.wraps(create)
    def factory(*args: P.args, **kwargs: P.kwargs) -> T:
        if "input_shape" in kwargs:
            raise TypeError(
                f"{name} has no argument input_shape={kwargs['input_shape']!r}: pass image_size=(height, width), or "
                "one integer for squares."
            )
        return create(variant, *args, **kwargs)

    name = factory.__name__ = factory.__qualname__ = factory_name(variant)
    _, first, rest = str(create.__doc__).partition("        pretrained: ")
    arguments = f"    Args:\n{first}{rest.partition('    Examples:')[0]}"
    if kind is BiT:
        arguments = "    The arguments are those of `create_model`, but for what a ResNet has no use for.\n\n"
    example = f"    Examples:\n        >>> model = keras_vit.{name}(classes=10)\n    "
    factory.__doc__ = f"The {variant} of the papers.\n\n{arguments}{example}"
    signature = inspect.signature(create)
    left_out = ("variant", *(OF_TRANSFORMERS if kind is BiT else ()))
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in left_out]
    factory.__signature__ = signature.replace(parameters=parameters, return_annotation=kind)  # ty: ignore[missing-attribute]
    return factory


ViT_Ti16 = _factory(create_model, "ViT-Ti/16", VisionTransformer)
ViT_S16 = _factory(create_model, "ViT-S/16", VisionTransformer)
ViT_S32 = _factory(create_model, "ViT-S/32", VisionTransformer)
ViT_B8 = _factory(create_model, "ViT-B/8", VisionTransformer)
ViT_B16 = _factory(create_model, "ViT-B/16", VisionTransformer)
ViT_B32 = _factory(create_model, "ViT-B/32", VisionTransformer)
ViT_L16 = _factory(create_model, "ViT-L/16", VisionTransformer)
ViT_L32 = _factory(create_model, "ViT-L/32", VisionTransformer)
ViT_H14 = _factory(create_model, "ViT-H/14", VisionTransformer)
R_ViT_Ti16 = _factory(create_model, "R+ViT-Ti/16", VisionTransformer)
R26_ViT_S32 = _factory(create_model, "R26+ViT-S/32", VisionTransformer)
R26_ViT_B32 = _factory(create_model, "R26+ViT-B/32", VisionTransformer)
R50_ViT_B16 = _factory(create_model, "R50+ViT-B/16", VisionTransformer)
R50_ViT_L32 = _factory(create_model, "R50+ViT-L/32", VisionTransformer)
BiT_R50x1 = _factory(create_model, "BiT-R50x1", BiT)
BiT_R50x3 = _factory(create_model, "BiT-R50x3", BiT)
BiT_R101x1 = _factory(create_model, "BiT-R101x1", BiT)
BiT_R101x3 = _factory(create_model, "BiT-R101x3", BiT)
BiT_R152x2 = _factory(create_model, "BiT-R152x2", BiT)
BiT_R152x4 = _factory(create_model, "BiT-R152x4", BiT)

# Those of the other families: a row of the table is all that there is to say of each.
FAMILY_FACTORIES: dict[str, Callable[..., VisionTransformer]] = {
    factory_name(variant): _factory(create_model, variant, VisionTransformer)
    for variant, row in VARIANTS.items()
    if row.family != "ViT"
}
globals().update(FAMILY_FACTORIES)

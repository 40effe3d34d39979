"""The variants as functions, with the conventions of `keras.applications`."""

import functools
import inspect
import re
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
        kind: The class of the models. Arguments that `create` refuses for it are not shown.
    """

    def factory(*args: P.args, **kwargs: P.kwargs) -> T:
        return create(variant, *args, **kwargs)

    functools.update_wrapper(factory, create)
    without = OF_TRANSFORMERS if kind is BiT else ()
    signature = inspect.signature(create)
    _, *parameters = signature.parameters.values()
    parameters = [parameter for parameter in parameters if parameter.name not in without]
    factory.__signature__ = signature.replace(parameters=parameters, return_annotation=kind)  # ty: ignore[missing-attribute]
    factory.__name__ = factory.__qualname__ = factory_name(variant)
    arguments = str(create.__doc__).partition("        variant: ")[2].partition("\n")[2]
    for name in without:
        arguments = re.sub(rf" {{8}}{name}: .*\n( {{12}}.*\n)*", "", arguments)
    arguments = arguments.replace("A `VisionTransformer`, or a `BiT`.", f"A `{kind.__name__}`.")
    arguments = arguments.partition("    Examples:\n")[0]
    example = f">>> model = keras_vit.{factory.__name__}(classes=10)"
    factory.__doc__ = f"The {variant} of the papers.\n\n    Args:\n{arguments}    Examples:\n        {example}\n    "
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

"""The variants as a table."""

from keras_vit.checkpoints.catalogue import of_family
from keras_vit.models import BIT_VARIANTS, VARIANTS, count_macs, count_weights, find_variant, variant_config
from keras_vit.tables import Table


def list_models(query: str | None = None, family: str | None = None) -> Table:
    """The variants, for `create_model`, as rows of a table.

    Args:
        query: Part of a name in any spelling, such as `"B/16"` or `"R50"`; None for all.
        family: Only those of a family, such as `"DINOv2"` or `"hybrid"`, in any spelling; None for all.

    Returns:
        A list of dicts with `name`, `family`, `params` and `macs` (multiply-accumulate operations for one image),
        both with 1,000 classes at `image_size` pixels. Printing it draws a table.

    Raises:
        TypeError: if `family` is neither a string nor None.
        ValueError: if no variant fits.

    Examples:
        >>> [row["name"] for row in keras_vit.list_models("B/16")][:2]
        ['ViT-B/16', 'R50+ViT-B/16']
    """
    names = [*VARIANTS, *BIT_VARIANTS]
    if query is not None:
        names = [name for name in names if _plain(query) in _plain(name)] or [find_variant(query)]
    rows = []
    for name in names:
        config = variant_config(name)
        counts = {"params": count_weights(config), "macs": count_macs(config)}
        rows.append({"name": name, "family": _family(name), **counts, "image_size": config.image_size[0]})
    return Table(of_family(rows, family))


def _family(name: str) -> str:
    if name in BIT_VARIANTS:
        return "BiT"
    return "hybrid" if VARIANTS[name].stem_stages is not None else VARIANTS[name].family


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()

"""What a model sees: attention, filters, similarities and evidence as arrays, as pictures, and as one page."""

from typing import Any

from keras_vit._importing import lazy_names

_names = lazy_names(__name__)


def __getattr__(name: str) -> Any:
    if name.startswith("plot_"):
        from keras_vit.inspection.plots import old_plot

        return old_plot(name)
    return _names(name)

"""`python -m keras_vit.demo`: the package's main job, without network, in about a minute."""

from keras_vit.demo.job import main, run

__all__ = ["main", "run"]

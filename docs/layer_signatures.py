"""A griffe extension: the signatures of layers, whose arguments are fields (see `keras_vit.layers.base.BaseLayer`)."""

import griffe


class LayerSignatures(griffe.Extension):
    """Gives each layer the `__init__` that its fields, and those of the classes above it, stand for."""

    def on_package(self, *, pkg: griffe.Module, **options: object) -> None:
        """Changes the layers of the package, all of which griffe has read."""
        for name in ("layers", "training"):
            for module in pkg.modules[name].modules.values():
                for cls in module.classes.values():
                    if cls.is_class and any(base.name == "BaseLayer" for base in cls.mro()):
                        self._describe(cls)

    def _describe(self, cls: griffe.Class) -> None:
        # What is not a field is a ClassVar, which belongs to the class alone; inherited ones are among the attributes.
        of_class = cls.attributes.items()
        fields = {key: of for key, of in of_class if of.annotation and "instance-attribute" in of.labels}
        if not fields or "__init__" in cls.members:
            return
        kind = griffe.ParameterKind
        parameters = [griffe.Parameter("self", kind=kind.positional_or_keyword)]
        for key, of in fields.items():
            argument, form = key.removeprefix("use_"), kind.positional_or_keyword
            parameters.append(griffe.Parameter(argument, annotation=of.annotation, kind=form, default=of.value))
        parameters.append(griffe.Parameter("kwargs", kind=kind.var_keyword))
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))

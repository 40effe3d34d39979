"""How each format is written: one module each, which runs under the Keras backend that its row in `FORMATS` names.

Each has three functions: `write(model, signature, path)`; `annotate(path, metadata)`, which puts the metadata where
the format has a place for it; and `operators(path)`, the names of the operators in the file and of those among them
that are not the runtime's own.
"""

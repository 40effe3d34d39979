"""How each runtime loads an exported file: one small module each, of NumPy and the runtime alone.

Each has one function, `load(path)`, which gives back a function from a batch of images to the answers, and names its
packages in `PACKAGES`. `run.py` beside them is a script that loads a file in a fresh process, answers and measures.
Nothing here knows Keras or this package: a module can be copied into a program that ships the file.
"""

"""Lets `python -m keras_vit.demo` work."""

import sys

from keras_vit.demo import main

if __name__ == "__main__":
    sys.exit(main())

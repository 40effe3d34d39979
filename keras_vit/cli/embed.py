"""`keras-vit embed`."""

import argparse

from keras_vit._arguments import printable
from keras_vit.cli.command import COUNT, SOURCE, Answer, Command, check_exists, check_source, start_keras


def _arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("images", nargs="+", metavar="FOLDER|FILE", help="a folder with all that is in it, or files and folders")
    add("-o", "--output", required=True, metavar="OUT", help="the .npz file to write")
    add("--weights", default="ViT-B/16", help=f"{SOURCE} (default: %(default)s)")
    add("--features", default="pre_logits", help="which, such as block_-1 or encoded (default: %(default)s)")
    add("--batch-size", type=COUNT, default=32, help="(default: %(default)s)")
    add("--dtype", choices=("float32", "float16"), default="float32", help="in the file (default: %(default)s)")
    add("--skip-unreadable", action="store_true", help="leave out files that are no images, and say which")
    add("--shard", type=shard, default=(0, 1), metavar="I/N", help="the I-th slice of N of the images only, from 0")
    add("--overwrite", action="store_true", help="replace OUT if it exists")


def shard(text: str) -> tuple[int, int]:
    """Slices, such as `0/4` for the first of four."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"must be I/N, from 0/N to (N-1)/N, but {text!r} was given")
    return int(index), int(count)


def _run(options: argparse.Namespace) -> Answer:
    """Looks for the files before anything that takes long, and embeds them."""
    check_exists(*options.images)
    check_source(options.weights)
    start_keras()
    from keras_vit.evaluation import embed
    from keras_vit.evaluation.embedding import check_output

    check_output(options.output)
    done = embed(
        options.weights,
        options.images if len(options.images) > 1 else options.images[0],
        options.output,
        features=options.features,
        batch_size=options.batch_size,
        dtype=options.dtype,
        shard=options.shard,
        on_bad_image="skip" if options.skip_unreadable else "stop",
        overwrite=options.overwrite,
    )
    shape = " x ".join(map(str, done.shape))
    start = f"{printable(done.path)} is already complete" if done.already_complete else f"Wrote {printable(done.path)}"
    text = f"{start}: {done.count:,} images, {shape} features each"
    if done.skipped:
        names = ", ".join(printable(name) for name in done.skipped[:5])
        text += f"; {len(done.skipped)} could not be read: {names}{' ...' if len(done.skipped) > 5 else ''}"
    data = {"path": str(done.path), "images": done.count, "shape": [*done.shape], "skipped": [*done.skipped]}
    return Answer({**data, "already_complete": done.already_complete}, text)


EMBED = Command(
    "Writes the features of many images to a file; a run that is killed goes on.",
    _arguments,
    _run,
    ("photos -o features.npz", "photos --weights glyphs --features block_-1 -o features.npz"),
)

"""What the program says: in its own words, and where it can before Keras is imported, which takes seconds."""

import shlex

import pytest

from keras_vit.cli.program import COMMANDS, _parser

FRAMEWORKS = {"keras", "tensorflow", "jax", "jaxlib", "torch"}

# Commands that cannot do their job, and what they say.
BEFORE_KERAS = {
    "picture": ("predict missing.png --weights glyphs", "missing.png"),
    "file": ("predict photo.png --weights missing.npz", "There is no file or folder missing.npz"),
    "Keras file": ("predict photo.png --weights missing.keras", "There is no file or folder missing.keras"),
    "model": ("predict photo.png --weights B17", "Did you mean 'ViT-B/16'? `keras-vit list` and"),
    "shipped checkpoint": ("predict photo.png --weights glyph", "Did you mean 'glyphs'"),
    "repository": ("predict photo.png --weights me/x", "Did you mean 'hf://me/x'"),
    "address": ("info hf:/me/x", "Did you mean 'hf://me/x'"),
    "nothing recommended": ("predict photo.png --weights H/14", "ViT-H_14"),
    "data": ("finetune glyphs nowhere", "DATA must be an image folder or tfds:NAME, but 'nowhere'"),
    "data that is a file": ("evaluate glyphs photo.png", "It is a file"),
    "weights to tune": ("finetune B17 photos", "Did you mean 'ViT-B/16'"),
    "recipe": ("finetune glyphs photos --recipe finetune/cifar", "Did you mean 'finetune/cifar10'"),
    "crop": ("finetune glyphs photos --crop nonsense", "--crop must be one of"),
    "randaugment": ("finetune glyphs photos --randaugment 2 31", "--randaugment must"),
    "probe": ("evaluate glyphs digits --seeds 2", "--few-shot"),
    "source to convert": ("convert missing.npz out.keras", "There is no file or folder missing.npz"),
    "target to convert": ("convert glyphs photo.png", "must end with"),
    "target that exists": ("convert glyphs old.keras", "--overwrite"),
    "layout": ("convert glyphs out.npz --layout nonsense", "--layout must be one of"),
    "layout of a folder": ("convert glyphs out", "--layout"),
    "layout of an ending": ("convert glyphs out.npz --layout timm", ".safetensors file, or a folder"),
    "layout of the other ending": ("convert glyphs out.safetensors --layout vit_jax", "is an .npz file"),
    "page": ("inspect glyphs -o nowhere/page.html", "no folder"),
    "page's ending": ("inspect glyphs -o page.txt", "must end with .html"),
    "picture of a page": ("inspect glyphs --image missing.png", "missing.png"),
    "suffix": ("export glyphs out.nonsense", "OUT must end with"),
    "no suffix": ("export glyphs out", "--format saved_model"),
    "calibration": ("export glyphs out.tflite --calibration missing", "missing"),
    "export that exists": ("export glyphs old.keras --format litert", "--overwrite"),
    "pictures to embed": ("embed missing -o out.npz", "missing"),
    "model to embed": ("embed photos --weights B17 -o out.npz", "Did you mean"),
}


@pytest.fixture
def place(tmp_path, monkeypatch, photo):
    """The working folder, with what the commands above expect there."""
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "old.keras").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", BEFORE_KERAS)
def test_what_is_known_without_keras_is_said_before_it_starts(run, place, monkeypatch, case):
    """`start_keras` is the only door: test_quick.py shows for some that nothing else imports a framework."""
    for module in ("files", "images"):
        monkeypatch.setattr(f"keras_vit.cli.{module}.start_keras", None)
    command, words = BEFORE_KERAS[case]
    err = run(*shlex.split(command), code=1).err
    assert words in err and err.count(" or ") <= 6 and "list_weights" not in err


@pytest.mark.parametrize(
    "case", ["picture", "model", "data", "recipe", "probe", "layout", "page", "calibration", "page"]
)
def test_no_framework_is_imported_to_say_so(program, place, case):
    command, words = BEFORE_KERAS[case]
    _, err, imported = program(*shlex.split(command), code=1)
    assert words in err and not FRAMEWORKS & set(imported)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('Pass on_bad_image="skip" to go on.', "Pass --on-bad-image skip to go on."),
        ("Take resume=False.", "Take --restart."),
        ("image_size must be positive.", "--image-size must be positive."),
        ("Pass batch_size=32, or less.", "Pass --batch-size 32, or less."),
        ("list_weights('B/16') shows all.", "`keras-vit list` shows all."),
        ("list_models() and list_recipes()", "`keras-vit list --models` and `keras-vit recipes`"),
        ("/photos/batch_size=32/a.png", "/photos/batch_size=32/a.png"),
    ],
)
def test_arguments_are_named_as_options(run, monkeypatch, message, words):
    def fail(options):
        raise ValueError(message)

    monkeypatch.setattr("keras_vit.cli.images.check_source", fail)
    assert run("finetune", "glyphs", "photos", code=1).err == f"keras-vit: {words}\n"


def test_a_flag_stands_for_true(run, monkeypatch):
    def fail(*_):
        raise FileExistsError("x exists. Choose another path or pass overwrite=True.")

    monkeypatch.setattr("keras_vit.cli.files.check_source", fail)
    assert "Choose another path or pass --overwrite." in run("convert", "glyphs", "out.keras", code=1).err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_that_are_right_and_shows_defaults(run, command):
    out = run(command, "--help").out
    about, _, examples = out.partition("\nexamples:\n")
    lines = examples.splitlines()
    assert 1 <= len(lines) <= 2 and "None" not in out
    for line in lines:
        arguments = shlex.split(line)
        assert arguments[:2] == ["keras-vit", command]
        _parser(arguments[1:]).parse_args(arguments[1:])


def test_defaults_of_the_recipe_are_shown(run):
    words = " ".join(run("finetune", "--help").out.split())
    assert "updates of the weights (default: the recipe's; finetune/cifar10: 10,000)" in words
    assert "(default: the recipe's; finetune/cifar10: 0.03)" in words


@pytest.mark.parametrize(("wrong", "right"), [("finetun", "finetune"), ("Predict", "predict"), ("exprt", "export")])
def test_a_wrong_command_is_answered_with_the_nearest(run, wrong, right):
    assert f"there is no command {wrong!r}. Did you mean {right!r}?" in run(wrong, "glyphs", code=2).err

"""The page: what is on it, that it stands alone, and how it looks to a real browser."""

import html
import html.parser
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from keras_vit import inspection
from tests.inspection.models import make
from tests.small_models import small_bit

pytestmark = pytest.mark.once

pytest.importorskip("PIL")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = '<img src=x onerror="document.title=1">'
PHOTOS = {"one.jpg": (30, 40), HOSTILE: (40, 20)}


class Reader(html.parser.HTMLParser):
    """Tags with their attributes, what is not closed, and the text."""

    VOID = {"meta", "link", "img", "input"}

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.text = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.text.append(data)


def photos():
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, 256, (*size, 3)).astype("uint8") for name, size in PHOTOS.items()}


def write(tmp_path, model, images=None, **options):
    path = inspection.write_page(model, tmp_path / "page.html", images, **options)
    page = path.read_text(encoding="utf-8")
    reader = Reader(page)
    assert reader.open == []
    for tag, attributes in reader.tags:
        for name in ("src", "href"):
            address = attributes.get(name, "data:")
            inside = address[:1] == "#" and re.search(rf"id=.{address[1:]}['\"]", page)
            assert inside or address.startswith("data:"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "http://" not in page and "https://" not in page
    assert not re.search(r"url\((?!data:)", page)
    return page, reader


def test_images_of_two_channels_are_shown_as_the_first_in_grey(tmp_path):
    model = make(image_size=80, patch_size=40, channels=2)
    pixels = np.random.default_rng(0).integers(0, 256, (80, 80, 2)).astype("uint8")
    page, _ = write(tmp_path, model, {"two.tif": pixels}, notes="One note.")
    assert "image/jpeg" in page and "<li>One note.</li>" in page
    shown = inspection.shown_pixels(model, model.preprocess(pixels))
    np.testing.assert_array_equal(shown[0], pixels[..., [0, 0, 0]])


def test_names_begin_where_paths_differ_and_classes_are_one_of_all_or_each_by_itself(tmp_path):
    photo, model = next(iter(photos().values())), make(classifier_activation="sigmoid")
    page, _ = write(tmp_path, model, {f"far/away/{name}": photo for name in ("cats/1.jpg", "dogs/1.jpg")})
    assert "cats/1.jpg" in page and "dogs/1.jpg" in page and "far/away" not in page
    best = 100 * model.predict(model.preprocess(photo), verbose=0).max()
    assert f'class="value">{best:.1f} %' in page


@pytest.mark.parametrize("kind", ["tanh", "gap", "map", "hybrid", "dynamic"])
def test_what_is_on_the_page(kind, tmp_path):
    model = make(kind, class_names=("cat", "<b>dog</b>", "owl"))
    page, reader = write(tmp_path, model, photos(), title="A & B", source={"layout": "<i>"}, notes=["odd <u>head</u>"])
    text = " ".join(reader.text)
    for words in ("A & B", "odd <u>head</u>", "<i>", "<b>dog</b>", "one.jpg", HOSTILE, f"{model.count_params():,}"):
        assert words in text
    for title in ("What it says", "Where it looks", "What it goes by", "How it is built"):
        assert title in text
    blocks = model.config.depth + (kind == "map")
    cells = [attributes for tag, attributes in reader.tags if tag == "td" and "data-head" in attributes]
    assert len(cells) == 2 * blocks * (model.config.heads + 1)
    for name, value in model.config.to_dict().items():
        assert name in text and (name == "class_names" or str(value) in text)
    assert len(page) < 2e6
    # From each photo to its other cards; on paper, pictures that are backgrounds and the maps behind the sliders.
    links = [attributes["href"] for tag, attributes in reader.tags if tag == "a"]
    assert {"#looks0", "#looks1", "#goes0", "#goes1"} <= {*links}
    assert "print-color-adjust: exact" in page and "beforeprint" in page
    # Each photo is in the file once.
    for i in range(2):
        assert page.count(f".i{i} {{ background-image: url(data:image/png;base64,") == 1


def test_without_images_without_a_head_and_of_a_bit(tmp_path):
    bit = small_bit(image_size=32, stages=(1, 1))
    for model, images, there, missing in (
        (make("plain"), None, ["How it is built"], ["What it says", "Where it looks"]),
        (make("plain", classes=None), photos(), ["no head", "Where it looks"], ["saliency"]),
        (bit, photos(), ["saliency", "ResNet"], ["Where it looks"]),
    ):
        _, reader = write(tmp_path, model, images)
        text = " ".join(reader.text)
        assert all(words in text for words in there) and not any(words in text for words in missing)


@pytest.mark.parametrize("final_norm", ["pooled", "none"])
def test_of_tokens_that_no_normalisation_follows(final_norm, tmp_path):
    _, reader = write(tmp_path, make("gap", final_norm=final_norm), photos())
    assert "principal components" in " ".join(reader.text)


def test_heads_are_left_out_before_a_page_grows_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(inspection.page, "HEAD_MAPS", 11)
    model = make("plain")
    _, reader = write(tmp_path, model, photos())  # 2 images x 2 blocks x (2 heads + their mean) are 12
    cells = [attributes["data-head"] for tag, attributes in reader.tags if tag == "td" and "data-head" in attributes]
    assert cells == ["-1"] * 4


PROBE = """
<script>
const errors = [];
addEventListener("error", event => errors.push(event.message));
addEventListener("securitypolicyviolation", event => errors.push(event.violatedDirective));
addEventListener("load", () => {
  const viewer = document.querySelector(".viewer");
  const [block, head] = viewer.querySelectorAll("input");
  const shown = viewer.querySelector(".seen img");
  const last = shown.src;
  block.value = 0; head.value = 1;
  head.dispatchEvent(new Event("input"));
  const cell = document.querySelector('#heads0 [data-block="0"][data-head="1"] img');
  const report = {
    errors, hidden: viewer.hidden, open: document.getElementById("heads0").open,
    moved: shown.src !== last, same: shown.src === cell.src, label: viewer.querySelectorAll("output")[1].textContent,
    wide: document.documentElement.scrollWidth > innerWidth, title: document.title,
    requests: performance.getEntriesByType("resource").filter(entry => !entry.name.startsWith("data:")).length,
    broken: [...document.querySelectorAll("table.plain th")].filter(th => {
      const range = document.createRange();
      range.selectNodeContents(th);
      return range.getClientRects().length > 1;
    }).map(th => th.textContent),
  };
  const pre = document.createElement("pre");
  pre.id = "report"; pre.textContent = JSON.stringify(report);
  document.body.append(pre);
});
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome")
def test_in_a_real_browser(tmp_path):
    unused = [f"text_model.layers.{i}.self_attn.k_proj.bias" for i in range(30)]
    page, _ = write(tmp_path, make("plain"), photos(), source={"layout": "huggingface", "unused": unused})
    (tmp_path / "probed.html").write_text(page.replace("<style>", PROBE + "<style>", 1), encoding="utf-8")
    # Headless Chromium makes no window narrower than 500 pixels; a frame can be.
    style = "height: 900px; border: 0; width:"
    both = "".join(f'<iframe src="probed.html" style="{style} {width}px"></iframe>' for width in (400, 1400))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1500,2000", "--virtual-time-budget=5000"]
    script = "for (const i of [0, 1]) document.body.append(frames[i].document.getElementById('report'))"
    (tmp_path / "frame.html").write_text(f"<!doctype html><body>{both}<script>onload = () => {{ {script} }}</script>")
    command += ["--dump-dom", (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.findall(r'<pre id="report">(.*?)</pre>', done.stdout)
    assert len(found) == 2, done.stderr[-2000:]
    for report in map(json.loads, map(html.unescape, found)):
        assert report["errors"] == [] and report["requests"] == 0
        assert not report["hidden"] and not report["open"] and report["moved"] and report["same"]
        assert report["label"] == "1" and report["title"] == "vision_transformer"
        assert not report["wide"]  # nothing sticks out to the side
        assert report["broken"] == []  # long values leave the names beside them their room


def test_the_number_of_a_regression(tmp_path):
    model = make(classes=1, class_names=("age",))
    image = np.zeros((1, *model.config.image_size, 3), "float32")
    inspection.write_page(model, tmp_path / "page.html", {"one.jpg": image[0]})
    number = float(model.predict(model.preprocess(image), verbose=0)[0, 0])
    assert f"age: {number:.4g}" in (tmp_path / "page.html").read_text()

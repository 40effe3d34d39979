"""Compares the page with Python in a browser without a window: ids, embeddings and probabilities.

python check.py SOURCE chromium        (or firefox-esr; after prepare.py, whose folder --page names)
"""

import argparse
import functools
import http.server
import json
import queue
import subprocess
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

import keras_vit

NO_HOST = "--host-resolver-rules=MAP * ~NOTFOUND,EXCLUDE localhost"  # Chromium finds no other host
FLAGS = {
    "chromium": ["--headless=new", "--no-sandbox", "--disable-gpu", NO_HOST, "--user-data-dir={}"],
    "firefox-esr": ["--headless", "--no-remote", "--profile", "{}"],
}
TEXTS = [
    "a photo of a cat",
    "ein Hund, zwei HUNDE!",
    "два кота",
    "猫の写真",
    "고양이",
    "صورة قطة",
    "ΓΑΤΑ ΟΔΟΣ",
    "बिल्ली",
]
TEXTS += ["แมว", "İstanbul", "🐱👍🏽", "e\u0301", "  ", ""]
DRIVE = """<script type="module">
import * as page from "./page.js";
const found = {}, ask = await (await fetch("ask.json")).json();
try {
  const state = await page.open(), ids = (text) => page.idsOf(state, text);
  const file = new File([await (await fetch("ask.png")).blob()], "ask.png", { type: "image/png" });
  found.ids = ask.map((text) => [...ids(text)]);
  for (const runtime of ["litert", "onnx"]) {
    const texts = [], began = performance.now();
    const image = await page.embed(state, runtime, "image", await page.imageInput(state, file));
    for (const text of ask.slice(0, 4)) texts.push(await page.embed(state, runtime, "text", ids(text)));
    found[runtime] = [[...image], page.probabilities(state, image, texts), ...texts.map((row) => [...row])];
    console.log(`${runtime}: ${performance.now() - began} ms`);
    found.outside = await page.embed(state, runtime, "text", ids("").fill(1e6)).catch(String);
  }
} catch (error) { found.error = String(error.stack ?? error); }
await fetch("done", { method: "POST", body: JSON.stringify(found) });
</script>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the page with a script that drives it, and takes what the script found."""

    found: "queue.Queue[dict]" = queue.Queue()

    def do_GET(self) -> None:
        if self.path != "/":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(Path(self.directory, "index.html").read_bytes() + DRIVE.encode())

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Returns the largest differences, and in how many texts the ids differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="the image-text model of prepare.py")
    parser.add_argument("browser", choices=FLAGS)
    parser.add_argument("--texts", type=Path, help="a JSON file with a list of texts")
    parser.add_argument("--page", type=Path, default=Path(__file__).parent)
    asked = parser.parse_args(arguments)
    texts = TEXTS if asked.texts is None else json.loads(asked.texts.read_text(encoding="utf-8"))
    rows, columns = np.mgrid[:97, :131]
    photo = asked.page / "ask.png"
    Image.fromarray(np.stack([rows * 2, columns, rows * columns % 256], -1).astype("uint8")).save(photo)
    (asked.page / "ask.json").write_text(json.dumps(texts))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(asked.page)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = [flag.format(profile) for flag in FLAGS[asked.browser]]
        command = [asked.browser, *flags, f"http://localhost:{server.server_port}/"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as browser:
            try:
                found = Handler.found.get(timeout=300)
            finally:
                browser.kill()
                server.shutdown()
                server.server_close()
    if "error" in found:
        raise RuntimeError(f"The page says: {found['error']}")
    both = keras_vit.load_image_text(asked.source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of texts that are cut
        ids = both.tokenizer(texts)
    result: dict[str, float] = {"texts with other ids": float((np.array(found["ids"]) != ids).any(1).sum())}
    expected = [both.embed_images(photo)[0], both.probabilities([photo], texts[:4])[0], *both.embed_texts(texts[:4])]
    for runtime in ("litert", "onnx"):
        pairs = zip(found[runtime], expected, strict=True)
        result[runtime] = max(float(np.abs(np.array(got) - row).max()) for got, row in pairs)
    result["ids outside the vocabulary are refused"] = float("outside the model's vocabulary" in found["outside"])
    print(json.dumps(result, indent=1))
    return result


if __name__ == "__main__":
    main()

"""The page of examples/browser in a browser: its ids, embeddings and probabilities are Python's.

Needs Debian's Chromium (or BROWSER=firefox-esr), and the npm packages of prepare.py: NODE_MODULES=FOLDER/node_modules.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.processes import script


@pytest.mark.once
@pytest.mark.nightly
def test_the_page_computes_what_python_does(golden, tmp_path):
    browser, modules = os.environ.get("BROWSER", "chromium"), os.environ.get("NODE_MODULES")
    if not (modules and shutil.which(browser)):
        pytest.skip(f"needs {browser} and NODE_MODULES=FOLDER, see the head of this file")
    prepare, case = script("examples/browser/prepare.py"), golden("txt_hf_clip")
    for name in ("index.html", "page.js"):
        shutil.copy(Path(prepare.__file__).with_name(name), tmp_path)
    prepare.main([str(case.folder), modules, "--page", str(tmp_path)])
    (tmp_path / "texts.json").write_text(json.dumps(case.meta["texts"]))
    options = ["--texts", str(tmp_path / "texts.json"), "--page", str(tmp_path)]
    found = script("examples/browser/check.py").main([str(case.folder), browser, *options])
    assert found["texts with other ids"] == 0 and found["ids outside the vocabulary are refused"]
    assert max(found["litert"], found["onnx"]) < 1e-4

"""Runs the scripts in notebooks/ and writes them, with their outputs, as notebooks beside them.

    python docs/make_notebooks.py            # pip install -e ".[tensorflow,notebooks]"

The scripts are what is edited. Five minutes for all, on the backend that KERAS_BACKEND names; names of scripts
as arguments for these only.
"""

import pathlib
import sys

import jupytext
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"


def main() -> None:
    """Writes notebooks/*.ipynb."""
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.py"))
    for path in (FOLDER / f"{name}.py" for name in names):
        notebook = jupytext.read(path)
        for number, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{number}"  # the same every time
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
        for cell in notebook.cells:
            cell.metadata = {}
            # What libraries say of the machine that this ran on is nothing to keep.
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
        jupytext.write(notebook, path.with_suffix(".ipynb"), fmt="ipynb")
        print(path.with_suffix(".ipynb").name)


if __name__ == "__main__":
    main()

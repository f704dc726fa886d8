"""JupyterLab in headless Chromium: a chapter is opened, run from top to bottom, a slider moved.

Usage: python tools/browser_lab.py [CHAPTER]

The chapter, `10_advantages` if none is named, must hold a slider. It is copied into a folder of its
own, so that the clone stays as it is. JupyterLab listens on 127.0.0.1 only, with a token.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from browser_check import FLAGS, find_browser
from playwright.sync_api import Page, sync_playwright

from gsmrl_helpers.server_process import free_port

ROOT = Path(__file__).resolve().parents[1]
CHAPTER = "10_advantages"
READOUT, PICTURE = ".widget-readout", "img.jupyter-widgets, .jupyter-widgets img"
START_S, RUN_S, MOVE_S = 90, 300, 30

# Of the open notebook, in which JupyterLab keeps cells that are out of view out of the page.
FIND_STATE = """() => {
  const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells
    .filter((cell) => cell.cell_type === 'code');
  const failed = cells.filter((cell) => cell.outputs.some((o) => o.output_type === 'error'));
  return {
    waiting: cells.filter((cell) => cell.execution_count === null && cell.source.trim()).length,
    failed: failed.map((cell) => cell.source.slice(0, 60)),
  };
}"""


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """Run JupyterLab in a folder and yield its address, token included."""
    port, token = free_port(), secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
    command += [f"--IdentityProvider.token={token}", "--ServerApp.port_retries=0"]
    command += [
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=",
        f"--notebook-dir={folder}",
    ]
    env = {
        **os.environ,
        "GSMRL_ROOT": str(ROOT),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
    }
    log = (folder / "lab.log").open("wb")
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(
            lambda: answers(f"{address}/api/status?token={token}", process), START_S, "JupyterLab"
        )
        yield f"{address}/lab/tree/{{name}}?token={token}"
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def answers(address: str, process: subprocess.Popen) -> bool:
    """Whether the server answers; a server that has ended never will."""
    if process.poll() is not None:
        raise RuntimeError(f"JupyterLab ended with exit code {process.returncode}")
    try:
        with urlopen(address, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def wait_for(condition, seconds: float, what: str) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it did not in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} was not there after {seconds} s")
        time.sleep(0.3)


def run_all(page: Page) -> dict:
    """Run all cells of the open notebook, in a new kernel, and say what failed."""
    page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.isReady")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_function(f"() => ({FIND_STATE})().waiting === 0", timeout=RUN_S * 1000)
    return page.evaluate(FIND_STATE)


def move_a_slider(page: Page) -> str:
    """Move the first slider by a key, and wait until the picture beside it is another one.

    Returns:
        What the slider said before and after.
    """
    handle = page.locator(".widget-slider .noUi-handle").first
    readout, picture = page.locator(READOUT).first, page.locator(PICTURE).first
    handle.scroll_into_view_if_needed()
    wait_for(lambda: readout.inner_text() and picture.get_attribute("src"), MOVE_S, "a widget")
    before, shown = readout.inner_text(), picture.get_attribute("src")
    handle.focus()  # the slider stands at its right end
    page.keyboard.press("ArrowLeft")
    wait_for(lambda: readout.inner_text() != before, MOVE_S, "a moved slider")
    wait_for(lambda: picture.get_attribute("src") != shown, MOVE_S, "another picture")
    return f"{before} to {readout.inner_text()}"


def try_chapter(chapter: str) -> list[str]:
    """What goes wrong with a chapter in JupyterLab."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        name = f"{chapter}.ipynb"
        notebook = json.loads((ROOT / "notebooks" / name).read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":  # so that what is seen was made here
                cell["outputs"], cell["execution_count"] = [], None
        (folder / name).write_text(json.dumps(notebook), encoding="utf-8")
        with jupyterlab(folder) as address:
            browser = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            errors: list[str] = []
            page.on("pageerror", lambda error: errors.append(f"script error: {error}"))
            page.goto(address.format(name=name), wait_until="domcontentloaded")
            found = run_all(page)
            faults = [f"{chapter}: the cell {source!r} failed" for source in found["failed"]]
            moved = move_a_slider(page)
            print(f"lab: {chapter} ran, a slider went from {moved} and changed its picture")
            if os.environ.get("GSMRL_SCREENSHOT"):
                page.screenshot(path=os.environ["GSMRL_SCREENSHOT"])
            browser.close()
            return faults + errors


def main() -> int:
    """Return 1 if something goes wrong; without a Chromium say so, which is a fault in CI only."""
    if find_browser() is None:
        print("lab: skipped, as no Chromium is installed (tools/install-debian.sh)")
        return 1 if os.environ.get("CI") else 0
    faults = try_chapter(sys.argv[1] if len(sys.argv) > 1 else CHAPTER)
    print(*faults, f"lab: {len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

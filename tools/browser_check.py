"""Look at a built site in headless Chromium.

Usage: python tools/browser_check.py SITE [--only TEXT] [--screenshots DIR] [--axe-everywhere]

SITE is served on 127.0.0.1, and every page in it is opened. A page is bad when the console shows an
error, a request fails or leaves the site, mathematics is not typeset, an image does not load, or
the page scrolls sideways at 390 px. On a page of each kind, or on all where that is asked for, axe
looks for violations that it calls serious or critical, which takes long on a long chapter. Then a
few things that a reader does are done: `browser_reader`.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from browser_reader import reader_faults
from playwright.sync_api import Browser, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844}
OF_EACH_KIND = ("book/welcome.html", "book/glossary.html", "notebooks/16_prompt_ablation.html")

# What a reader would see as broken, found in the page itself.
FIND_FAULTS = """async () => {
  const faults = [];
  // what waits until it is near the window is asked for now
  for (const image of document.images) image.loading = 'eager';
  await Promise.all([...document.images].map((image) => image.decode().catch(() => {})));
  await document.fonts.ready;
  for (const formula of document.querySelectorAll('.math')) {
    const set = formula.querySelector('.katex-html');
    if (!set || !set.offsetWidth) faults.push(`formula not typeset: ${formula.textContent}`);
  }
  for (const image of document.images)
    if (!image.complete || image.naturalWidth === 0) faults.push(`image not loaded: ${image.src}`);
  if (document.body.innerText.includes('Loading widget')) faults.push('a widget that never loads');
  return faults;
}"""

# Wider than the window is a page that moves sideways; named is the first element that sticks out.
FIND_SIDEWAYS = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  const clipped = (e) => {
    for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
      if (getComputedStyle(p).overflowX !== 'visible') return true;
    return false;
  };
  const wide = [...document.body.querySelectorAll('*')].find(
    (e) => e.getBoundingClientRect().right > width + 1 && !clipped(e));
  const name = wide ? `${wide.tagName.toLowerCase()}.${wide.className}` : 'unknown';
  return [`scrolls sideways at ${width} px: ${name} ${wide?.textContent.trim().slice(0, 40)}`];
}"""

FIND_BARRIERS = """async () => {
  // without preload, which fetches style sheets again, from addresses that are not theirs
  const found = await axe.run(document, {resultTypes: ['violations'], preload: false});
  return found.violations
    .filter((v) => ['serious', 'critical'].includes(v.impact))
    .map((v) => `axe: ${v.id}, ${v.nodes.length} times, the first: ${v.nodes[0].target}`);
}"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without writing a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of 127.0.0.1 and yield its address."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def watch(page: Page, address: str) -> list[str]:
    """Collect what goes wrong while this page loads; the list grows as it does."""
    faults: list[str] = []

    def hear(message) -> None:
        if message.type == "error":
            faults.append(f"console: {message.text} ({message.location['url']})")

    page.on("console", hear)
    page.on("pageerror", lambda error: faults.append(f"script error: {error}"))
    page.on("requestfailed", lambda r: faults.append(f"request failed: {r.url}"))

    def refuse_leaving(route, request) -> None:
        if request.url.startswith((address, "data:", "blob:")):
            route.continue_()
        else:
            faults.append(f"request leaves the site: {request.url}")
            route.abort()

    page.route("**/*", refuse_leaving)
    return faults


def find_axe() -> Path | None:
    """Return axe's program, from the package axe-playwright-python, if that is installed."""
    package = importlib.util.find_spec("axe_playwright_python")
    return Path(package.origin).with_name("axe.min.js") if package else None


def look_at(
    browser: Browser, address: str, name: str, scheme: str, picture: Path | None, axe: Path | None
) -> list[str]:
    """Open one page, light or dark, and return its faults; save a picture if asked to."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        faults = watch(page, address)
        page.goto(f"{address}/{name}", wait_until="networkidle")
        faults += page.evaluate(FIND_FAULTS)
        if picture:
            picture.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=picture, full_page=True)
        if axe:
            page.add_script_tag(path=axe)
            faults += page.evaluate(FIND_BARRIERS)
        page.set_viewport_size(PHONE)
        faults += page.evaluate(FIND_SIDEWAYS)
        return [f"{name} ({scheme}): {fault}" for fault in faults]
    finally:
        context.close()


def find_browser() -> str | None:
    """Return the path of an installed Chromium: `CHROMIUM` if set, else what the PATH holds."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def main() -> int:
    """Check every page of the site and return 1 if one is bad."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--screenshots", type=Path, help="folder for pictures, light and dark")
    parser.add_argument("--only", help="check the pages whose path contains this text")
    parser.add_argument("--axe-everywhere", action="store_true", help="axe on every page: minutes")
    arguments = parser.parse_args()
    executable = find_browser()
    if executable is None:
        print("browser: skipped, as no Chromium is installed (tools/install-debian.sh)")
        return 1 if os.environ.get("CI") else 0

    pages = [path.relative_to(arguments.site) for path in sorted(arguments.site.rglob("*.html"))]
    # index.html only leads to the first page
    pages = [p for p in pages if p.as_posix() != "index.html" and p.parts[0] != "_static"]
    names = [p.as_posix() for p in pages if (arguments.only or "") in p.as_posix()]
    if not names:
        which = f"whose path contains {arguments.only!r}" if arguments.only else "at all"
        print(f"browser: {arguments.site} has no page {which} ({len(pages)} pages in it)")
        return 1
    axe = find_axe()
    if axe is None:
        print("browser: no axe check, as axe-playwright-python is not installed (make setup)")
    faults: list[str] = []
    with serve(arguments.site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        for name in names:
            for scheme in ("light", "dark") if arguments.screenshots else ("light",):
                stem = name.removesuffix(".html").replace("/", "-")
                folder = arguments.screenshots
                picture = folder / f"{stem}-{scheme}.png" if folder else None
                with_axe = arguments.axe_everywhere or arguments.only or name in OF_EACH_KIND
                program = axe if with_axe else None
                faults += look_at(browser, address, name, scheme, picture, program)
        if not arguments.only:
            faults += reader_faults(browser, address, watch)
        browser.close()
    print(*faults, f"browser: {len(names)} pages, {len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

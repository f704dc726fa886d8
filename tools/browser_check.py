"""Look at a built site in headless Chromium.

Usage: python tools/browser_check.py SITE [--only TEXT] [--screenshots DIR]

SITE is served on 127.0.0.1, and every page in it is opened. A page is bad when the console shows an
error, a request fails or leaves the site, mathematics is not typeset or an image does not load.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

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
NOT_PAGES = {"genindex.html", "search.html", "index.html"}

# What a reader would see as broken, found in the page itself.
FIND_FAULTS = """() => {
  const faults = [];
  const math = document.querySelectorAll('.math');
  const typeset = document.querySelectorAll('mjx-container');
  const missing = math.length - typeset.length;
  if (missing > 0) faults.push(`${missing} formulas not typeset`);
  const wrong = document.querySelectorAll('mjx-merror, [data-mjx-error]');
  if (wrong.length) faults.push(`${wrong.length} formulas with an error`);
  for (const image of document.images)
    if (!image.complete || image.naturalWidth === 0) faults.push(`image not loaded: ${image.src}`);
  if (document.body.innerText.includes('Loading widget')) faults.push('a widget that never loads');
  return faults;
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
    page.on("console", lambda m: faults.append(f"console: {m.text}") if m.type == "error" else None)
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


def look_at(
    browser: Browser, address: str, name: str, scheme: str, picture: Path | None
) -> list[str]:
    """Open one page, light or dark, and return its faults; save a picture if asked to."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        faults = watch(page, address)
        page.goto(f"{address}/{name}", wait_until="networkidle")
        if page.locator(".math").count():
            page.wait_for_function("() => window.MathJax?.startup?.promise")
            page.evaluate("() => MathJax.startup.promise")
        faults += page.evaluate(FIND_FAULTS)
        if picture:
            picture.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=picture, full_page=True)
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
    arguments = parser.parse_args()
    executable = find_browser()
    if executable is None:
        print("browser: skipped, as no Chromium is installed (tools/install-debian.sh)")
        return 1 if os.environ.get("CI") else 0

    pages = [path.relative_to(arguments.site) for path in sorted(arguments.site.rglob("*.html"))]
    pages = [p for p in pages if p.name not in NOT_PAGES and p.parts[0] != "_static"]
    names = [p.as_posix() for p in pages if (arguments.only or "") in p.as_posix()]
    if not names:
        which = f"whose path contains {arguments.only!r}" if arguments.only else "at all"
        print(f"browser: {arguments.site} has no page {which} ({len(pages)} pages in it)")
        return 1
    faults: list[str] = []
    with serve(arguments.site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        for name in names:
            for scheme in ("light", "dark") if arguments.screenshots else ("light",):
                stem = name.removesuffix(".html").replace("/", "-")
                folder = arguments.screenshots
                picture = folder / f"{stem}-{scheme}.png" if folder else None
                faults += look_at(browser, address, name, scheme, picture)
        browser.close()
    print(*faults, f"browser: {len(names)} pages, {len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a reader does in the book, done in a browser; part of `browser_check`.

Each check opens the page that it needs and returns what went wrong, in words.
"""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Browser, Error, Page, expect

PATIENCE_MS = 10_000
GLOSSARY, EXERCISES = "book/glossary.html", "notebooks/10_advantages.html"


def search_finds(page: Page, address: str) -> None:
    """A term of the glossary is found, and the glossary is among the results."""
    page.goto(f"{address}/search.html?q=advantage")
    found = page.locator(f'#search-results a[href*="{GLOSSARY}"]')
    expect(found.first).to_be_visible(timeout=PATIENCE_MS)


def theme_switches(page: Page, address: str) -> None:
    """The button in the header changes light to dark, and the background follows."""
    page.goto(f"{address}/{GLOSSARY}", wait_until="networkidle")
    root, background = page.locator("html"), "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(background)
    for _ in range(3):  # the button goes through light, dark and the system's choice
        page.locator("button.theme-switch-button:visible").first.click()
        if root.get_attribute("data-theme") == "dark":
            break
    expect(root).to_have_attribute("data-theme", "dark", timeout=PATIENCE_MS)
    if page.evaluate(background) == before:
        raise AssertionError("dark mode has the background of light mode")


def hint_unfolds(page: Page, address: str) -> None:
    """An exercise's hint is hidden, and shown after a click."""
    page.goto(f"{address}/{EXERCISES}", wait_until="networkidle")
    hint = page.locator(".exercise details.sd-dropdown").first
    text = hint.locator(".sd-summary-content")
    expect(text).to_be_hidden()
    hint.locator("summary").click()
    expect(text).to_be_visible(timeout=PATIENCE_MS)


def solution_unfolds(page: Page, address: str) -> None:
    """A folded solution is hidden, and shown after a click."""
    page.goto(f"{address}/{EXERCISES}", wait_until="networkidle")
    solution = page.locator("details.hide.above-input").first
    code = solution.locator("pre").first
    expect(code).to_be_hidden()
    solution.locator("summary").click()
    expect(code).to_be_visible(timeout=PATIENCE_MS)


def term_is_previewed(page: Page, address: str) -> None:
    """A term of the glossary in a chapter shows its definition when it has the focus."""
    page.goto(f"{address}/{EXERCISES}", wait_until="networkidle")
    term = page.locator("a.glossary-term").first
    term.focus()
    preview = page.locator("[role=tooltip].glossary-preview")
    expect(preview).to_be_visible(timeout=PATIENCE_MS)
    expect(preview).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(preview).to_be_hidden()


def downloads_are_there(page: Page, address: str) -> None:
    """A chapter offers its notebook and its script, and both can be fetched."""
    page.goto(f"{address}/{EXERCISES}", wait_until="networkidle")
    for suffix in (".ipynb", ".py"):
        link = page.locator(f'.dropdown-download-buttons a[href$="{suffix}"]').first
        href = link.evaluate("(a) => a.href", timeout=PATIENCE_MS)
        response = page.request.get(href)
        if not response.ok:
            raise AssertionError(f"{href} cannot be fetched: HTTP {response.status}")


CHECKS = (
    search_finds,
    theme_switches,
    hint_unfolds,
    solution_unfolds,
    term_is_previewed,
    downloads_are_there,
)


def reader_faults(
    browser: Browser, address: str, watch: Callable[[Page, str], list[str]]
) -> list[str]:
    """Do all of it, each in a window of its own, and return what went wrong."""
    faults = []
    for check in CHECKS:
        context = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900})
        try:
            page = context.new_page()
            seen = watch(page, address)
            try:
                check(page, address)
            except (AssertionError, Error) as error:
                seen.append(str(error).splitlines()[0])
            faults += [f"{check.__name__}: {fault}" for fault in seen]
        finally:
            context.close()
    return faults

"""Pages link to files of the repository by their paths, as a reader of the repository follows them.

Such a file becomes a part of the site, under its path from the root; links to it are changed to fit. A file of
Markdown becomes a page, and is listed in mkdocs.yml. A link to a folder, which no site shows, becomes its text.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s#]+)((?:#[^)]*)?)\)")  # its text, where it leads to, and where in there


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in every file outside of docs/ that a page links to, and what is linked from there."""
    waiting = [Path(file.abs_src_path) for file in files if file.is_documentation_page() and file.abs_src_path]
    waiting += [ROOT / path for path in pages(config.nav) if not (DOCS / path).exists()]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        if DOCS not in path.parents:
            files.append(File(str(path.relative_to(ROOT)), str(ROOT), config.site_dir, use_directory_urls=False))
        if path.suffix == ".md":
            linked = (inside(path, link[2]) for link in LINK.finditer(path.read_text("utf-8")))
            waiting += [to for to in linked if to is not None and DOCS not in to.parents]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change links to files outside of docs/ to where these are on the site."""
    path, start = Path(str(page.file.abs_src_path)), os.path.dirname(page.file.src_uri)

    def changed(link: re.Match[str]) -> str:
        to = inside(path, link[2])
        if to is None:
            return link[0]
        if to.is_dir():
            return link[1]
        here = to.relative_to(DOCS if DOCS in to.parents else ROOT)
        return f"[{link[1]}]({os.path.relpath(here, start or '.')}{link[3]})"

    return LINK.sub(changed, markdown)


def pages(nav: object) -> list[str]:
    """The paths of all pages in the navigation."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
    return [path for part in parts for path in pages(part)]


def inside(page: Path, link: str) -> Path | None:
    """The file or folder of the repository that a link leads to, or None; for README, the site's first page."""
    if ":" in link:
        return None
    to = Path(os.path.normpath(page.parent / link))
    if to == ROOT / "README.md":
        return DOCS / "index.md"
    return to if ROOT in to.parents and to.exists() else None

"""Extends mkdocs for the site: pages from outside of docs/, one entry for many pages, and nothing from other hosts."""

import fnmatch
import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

_ROOT = Path(__file__).parents[1]
#: Pages outside of docs/. README has another name on the site, where README means the page of a folder.
_OUTSIDE = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
#: What a browser loads by itself when it shows the page; a link that a reader follows is not meant.
_LOADED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def on_files(files, config):
    """Add the pages from outside of docs/, and replace each entry that stands for many pages by these pages."""
    for name, page in _OUTSIDE.items():
        files.append(File.generated(config, page, content=(_ROOT / name).read_text(encoding="utf-8")))
    pages = [file.src_uri for file in files.documentation_pages()]
    for page in pages:
        for link in _LINK.findall(files.get_file_from_path(page).content_string):
            if (path := _path_of(page, link)) is not None and files.get_file_from_path(_place_of(path)) is None:
                files.append(File.generated(config, _place_of(path), content=(_ROOT / path).read_bytes()))
    config.nav = _written_out(config.nav, pages, set(_named(config.nav)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Let links to the added pages lead to their places on the site."""
    here = page.file.src_uri

    def on_site(link):
        path = _path_of(here, link[1])
        return link[1] if path is None else posixpath.relpath(_place_of(path), posixpath.dirname(here) or ".")

    return _LINK.sub(on_site, markdown)


def on_post_page(output, page, config):
    """Fail if a page loads something from elsewhere."""
    if found := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads {found[1]}")
    return output


def _path_of(page, link):
    """The path in the repository of the file that a page links to, if the link is another one on the site."""
    folder = "" if page in _OUTSIDE.values() else posixpath.join("docs", posixpath.dirname(page))
    path = posixpath.normpath(posixpath.join(folder, link))
    is_moved = page in _OUTSIDE.values() or not path.startswith("docs/")
    return path if is_moved and (_ROOT / path).is_file() else None


def _place_of(path):
    """Where a file of the repository is on the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else _OUTSIDE.get(path, f"repository/{path}")


def _named(entries):
    """Every page that the navigation names one by one."""
    for entry in entries:
        for below in entry.values() if isinstance(entry, dict) else [entry]:
            yield from _named(below) if isinstance(below, list) else [below]


def _written_out(entries, pages, named):
    """The same entries, with each entry that has a star replaced by its pages. A section without pages is removed."""
    written = []
    for entry in entries:
        if isinstance(entry, dict):
            [(title, below)] = entry.items()
            below = _written_out(below, pages, named) if isinstance(below, list) else below
            written += [{title: below}] if below else []
        elif "*" in entry:
            found = (page for page in fnmatch.filter(pages, entry) if page not in named)
            written += sorted(found, key=lambda page: (not page.endswith(("index.md", "README.md")), page))
        else:
            written.append(entry)
    return written

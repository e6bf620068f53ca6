"""A hook of mkdocs: the pages at the root of the repository become pages of the site.

Links between pages lead to pages of the site. The sources are not part of it: a link to one becomes its text.
"""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^()\s]+)\)")


def on_files(files, config):
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown, page, config, files):
    folder = "docs/" if page.file.src_uri not in PAGES.values() else ""
    # Reference links, which lead to sources alone.
    markdown = re.sub(r"^\[`[^\]]*`\]: .*\n?", "", markdown, flags=re.MULTILINE)
    markdown = re.sub(r"\[(`[^`]*`)\](?:\[`[^`]*`\])?(?!\()", r"\1", markdown)

    def moved(match):
        mark, text, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or ":" in path:
            return match.group()
        place = (ROOT / folder / path).resolve().relative_to(ROOT).as_posix()
        place = PAGES.get(place, place.removeprefix("docs/") if place.startswith("docs/") else None)
        return f"{mark}[{text}]({place}{hash_}{anchor})" if place else text

    return LINK.sub(moved, markdown)

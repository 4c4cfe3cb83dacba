"""Checks the links of the documentation: that each relative one leads to a file and its heading, and that docs/README.md
lists every page.

  links.py SOURCE_DIR
"""

import os
import re
import sys

SOURCE = os.path.abspath(sys.argv[1])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def markdown_files():
    for folder, folders, files in os.walk(SOURCE):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "build"]
        yield from (os.path.join(folder, name) for name in files if name.endswith(".md"))


def prose(path):
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", open(path, encoding="utf-8").read(), flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """GitHub's names of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def faults():
    listed = set()
    for page in markdown_files():
        for link in LINK.findall(prose(page)):
            if re.match(r"\w+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            where = f"{os.path.relpath(page, SOURCE)}: ({link})"
            if not os.path.exists(target):
                yield f"{where}: leads to no file"
            elif anchor and anchor not in anchors(target):
                yield f"{where}: leads to no heading; the page has {', '.join(sorted(anchors(target)))}"
            elif page == os.path.join(SOURCE, "docs/README.md"):
                listed.add(target)
    plugins = os.path.join(SOURCE, "docs/reference/plugins")  # its own README.md lists these
    for page in markdown_files():
        if page.startswith(os.path.join(SOURCE, "docs") + os.sep) and os.path.dirname(page) != plugins:
            if page not in listed and page != os.path.join(SOURCE, "docs/README.md"):
                yield f"docs/README.md does not list {os.path.relpath(page, SOURCE)}"


def main():
    found = list(faults())
    print("\n".join(found) or "every link leads to its page")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

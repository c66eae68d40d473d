"""Every link, picture and anchor of the built book leads somewhere: links.py FOLDER."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Where a page leads, and what in it can be led to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.update(attributes[key] for key in ("id", "name") if attributes.get(key))
        self.links += [attributes[key] for key in ("href", "src") if attributes.get(key)]


def main(folder):
    # The print page repeats all others, with links that fit where those stand.
    paths = [path for path in sorted(folder.rglob("*.html")) if path.name not in ("print.html", "404.html", "toc.html")]
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in paths}
    broken, followed = [], 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists():
                broken.append(f"{path.name}: {link}")
            elif anchor and target in pages and anchor not in pages[target].ids:
                broken.append(f"{path.name}: {link} (no such anchor)")
    print(*broken, sep="\n", end="\n" if broken else "")
    print(f"{len(pages)} pages, {followed} links, {len(broken)} of them broken")
    return 1 if broken or followed < 100 else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
